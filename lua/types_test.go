package lua

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// call is a typed call on the fixture, with arguments that make it change something.
type call struct {
	script *script
	keys   func(b *testQueue) []string // the keys that it uses
	run    func(b *testQueue) error
}

// spared returns the keys of a call that may have any type, because the call does not use them on the fixture, or can
// do without them. Other tests check a wake token and a dead letter that cannot be added.
func (c call) spared(b *testQueue) []string {
	told := []string{b.k.Policy, b.k.History} // a call that cannot record its history does its work all the same
	if !c.script.hasActor() {
		told = nil
	}
	return append(told, c.sparedElse(b)...)
}

// sparedElse returns the spared keys besides those of the history.
func (c call) sparedElse(b *testQueue) []string {
	switch c.script {
	case enqueueScript: // it schedules, because others are overdue
		return []string{b.k.Stream, b.k.Wake, b.k.Turns}
	case rescheduleScript, rescheduleRetriesScript: // for messages that do not wait for a key
		return []string{b.k.Meta, b.k.Turns}
	case expireScript:
		return []string{b.k.Turns}
	case drainScript:
		// The bucket is read only if the policy has a rate, and a text that is no number counts as no bucket.
		return []string{b.k.Dead, b.k.Rate, b.k.Turns}
	case retryScript:
		return []string{b.k.Dead, b.k.Wake, b.k.Turns}
	case reclaimScript, cancelScript, cancelRetriesScript: // without progress, the next attempt begins anew
		return []string{b.k.Wake, b.k.Turns, b.k.Leases, b.k.Progress}
	case cancelEntriesScript, withdrawScript:
		return []string{b.k.Wake}
	case enqueueFreshScript, enqueueOneScript:
		return []string{b.k.Wake}
	case ackScript: // for a message without a key
		return []string{b.k.Due, b.k.Wake, b.k.Turns}
	case ackResultScript: // a result replaces whatever is at its key
		return []string{b.k.Due, b.k.Wake, b.k.Turns, b.k.Result("g", "m")}
	case receiveScript: // a lease that is not recorded ends later
		return []string{b.k.Leases, b.k.Wake}
	case trimScript:
		return []string{b.k.Seen, b.k.Turns, b.k.Leases, b.k.Progress}
	case glanceScript: // a glance does without the notes of bridges
		return []string{b.k.Calm}
	case takeScript: // a text that is no number is a full bucket
		return []string{b.g.Bucket("bucket")}
	case claimScript: // a text of another form is no record
		return []string{b.k.Once("g", "m")}
	}
	return nil
}

// calls has a call of each script.
func calls() []call {
	held := []Held{{Entry: "5-1", ID: "m"}}
	queue := func(pick func(k Keys) []string) func(b *testQueue) []string {
		return func(b *testQueue) []string { return pick(b.k) }
	}
	exits := queue(func(k Keys) []string {
		return []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Turns, k.Policy, k.History}
	})
	waking := queue(rescheduleKeys)
	stream := queue(func(k Keys) []string { return []string{k.Stream} })
	return []call{
		{enqueueScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.History, k.Turns}
		}), func(b *testQueue) error {
			meta := EncodeMeta(map[string]string{"a": "b"}, 0, time.Time{})
			_, err := Enqueue(b.ctx, b.c, b.k, Token{Name: "t", Window: time.Hour}, []Item{
				{ID: "n", When: After(0), Payload: []byte("p"), Meta: meta, Dedup: Window(time.Hour)},
				{ID: "l", When: After(time.Second), Payload: []byte("p"), Meta: meta}}, Durability{})

			return err
		}},
		{enqueueFreshScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Wake, k.Seen, k.Policy, k.History}
		}),
			func(b *testQueue) error { // the caller's payloads are there
				_, err := enqueueFreshScript.run(b.ctx, b.c,
					[]string{b.k.Due, b.k.Payload, b.k.Meta, b.k.Wake, b.k.Seen, b.k.Policy, b.k.History},
					[]string{"t", "before", "60000", "due", "1", "orphan", "+1000", "due", "who"})
				return err
			}},
		{enqueueOneScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Wake, k.Seen, k.Policy}
		}), func(b *testQueue) error {
			token := Token{Name: "t", Done: "before", Window: time.Hour}
			_, _, err := EnqueueOne(b.ctx, b.c, b.k, token, false,
				Item{ID: "one", When: After(time.Second), Payload: []byte("p"), Meta: `{"h:a":"b"}`})
			return err
		}},
		{cancelScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Seen, k.Policy, k.History, k.Turns, k.Wake}
		}), func(b *testQueue) error {
			_, err := Cancel(b.ctx, b.c, b.k, []string{"m", "due"}, Durability{})
			return err
		}},
		{versionsScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta}
		}), func(b *testQueue) error {
			_, err := Versions(b.ctx, b.c, b.k, []string{"m", "due"})
			return err
		}},
		{withdrawScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Turns, k.Wake}
		}), func(b *testQueue) error {
			exported := Exported{Member: "due", Score: "5", Payload: []byte("p"), Meta: `{"h:a":"b"}`}
			_, err := Withdraw(b.ctx, b.c, b.k, exported)
			return err
		}},
		{rescheduleScript, waking, func(b *testQueue) error {
			_, _, err := Reschedule(b.ctx, b.c, b.k, "due", At(time.UnixMilli(3)), Durability{})
			return err
		}},
		{cancelRetriesScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Turns, k.Wake, k.Policy, k.History}
		}), func(b *testQueue) error {
			_, _, err := CancelRetries(b.ctx, b.c, b.k, Walk{Limit: 10}, []string{"m", "due"})
			return err
		}},
		{cancelEntriesScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Due, k.Seen, k.Wake, k.Turns, k.Policy, k.History}
		}), func(b *testQueue) error {
			_, _, err := CancelEntries(b.ctx, b.c, b.k, EntryWalk{Limit: 10}, []string{"m", "due"}, Durability{})
			return err
		}},
		{rescheduleRetriesScript, waking, func(b *testQueue) error {
			_, _, err := RescheduleRetries(b.ctx, b.c, b.k, Walk{Limit: 10}, At(time.UnixMilli(3)), []string{"m", "due"})
			return err
		}},
		{expireScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Meta, k.Wake, k.Policy, k.History, k.Turns}
		}), func(b *testQueue) error {
			_, err := Expire(b.ctx, b.c, b.k, []string{"m", "due"})
			return err
		}},
		{drainScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Turns, k.Policy, k.Rate, k.History}
		}), func(b *testQueue) error {
			_, err := Drain(b.ctx, b.c, b.k, 10, 1000)
			return err
		}},
		{ackScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History}
		}), func(b *testQueue) error {
			_, err := Ack(b.ctx, b.c, b.k, "g", held)
			return err
		}},
		{retryScript, exits, func(b *testQueue) error {
			_, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{{Held: Held{Entry: "6-1"}, Action: ActionDead},
				{Held: held[0], Action: ActionRetry}})
			return err
		}},
		{reclaimScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Calm, k.Turns, k.Policy, k.Leases, k.History,
				k.Progress}
		}), func(b *testQueue) error {
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, Limit: 10, MaxBytes: 1000})
			return err
		}},
		{extendScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Dead, k.Policy, k.History}
		}), func(b *testQueue) error {
			_, err := Extend(b.ctx, b.c, b.k, "g", "c1", held)
			return err
		}},
		{ackResultScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History, k.Result("g", "m")}
		}), func(b *testQueue) error {
			_, err := AckResult(b.ctx, b.c, b.k, "g", held[0], 1, time.Minute, []byte("paid"))
			return err
		}},
		{saveProgressScript, queue(func(k Keys) []string { return []string{k.Stream, k.Progress} }),
			func(b *testQueue) error {
				_, err := SaveProgress(b.ctx, b.c, b.k, "g", "c1", held[0], []byte("page 7"))
				return err
			}},
		{receiveScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Policy, k.Leases, k.Wake}
		}), func(b *testQueue) error {
			_, err := Receive(b.ctx, b.c, b.k, "g", "c1", time.Second, 2*time.Second, 10)
			return err
		}},
		{redriveScript, queue(func(k Keys) []string {
			return []string{k.Dead, k.Due, k.Payload, k.Meta, k.Wake, k.Stream, k.Policy, k.History}
		}),
			func(b *testQueue) error {
				_, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{{Letter: "4-1", When: After(0)}})
				return err
			}},
		{exportScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta}
		}), func(b *testQueue) error {
			_, err := Export(b.ctx, b.c, b.k, Exported{}, 10, 1000)
			return err
		}},
		{restoreScript, queue(func(k Keys) []string {
			return []string{k.Dead, k.Seen, k.Policy, k.History}
		}), func(b *testQueue) error {
			_, err := RestoreDead(b.ctx, b.c, b.k, time.Hour,
				[]Restore{{Name: "q/3-1", Entry: "3-1", Fields: fields("id", "d", "payload", "p")}})
			return err
		}},
		{passTurnsScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Due, k.Meta, k.Wake, k.Turns}
		}), func(b *testQueue) error {
			_, err := PassTurns(b.ctx, b.c, b.k, TurnsPassed{}, 10)
			return err
		}},
		{trimScript, queue(func(k Keys) []string {
			return []string{k.Stream, k.Seen, k.Turns, k.Leases, k.Progress}
		}), func(b *testQueue) error {
			_, err := Trim(b.ctx, b.c, b.k, "", 10, 1000)
			return err
		}},
		{ensureGroupScript, stream, func(b *testQueue) error {
			_, err := EnsureGroup(b.ctx, b.c, b.k, "another")
			return err
		}},
		{dropConsumerScript, stream, func(b *testQueue) error {
			_, err := DropConsumers(b.ctx, b.c, b.k, "g", []string{"c2"})
			return err
		}},
		{setTargetScript, queue(func(k Keys) []string { return []string{k.Push} }), func(b *testQueue) error {
			_, err := SetTarget(b.ctx, b.c, b.k, "g", "", "{}", 9)
			return err
		}},
		{deleteEmptyScript, queue(emptyKeys), func(b *testQueue) error {
			_, err := DeleteEmpty(b.ctx, b.c, b.k, true)
			return err
		}},
		{dropGroupsScript, stream, func(b *testQueue) error {
			_, err := DropGroups(b.ctx, b.c, b.k, []string{"another"})
			return err
		}},
		{signalScript, queue(func(k Keys) []string { return []string{k.Wake} }), func(b *testQueue) error {
			return signal(b.ctx, b.c, b.k.Wake, "settings")
		}},
		{configureScript, queue(func(k Keys) []string { return []string{k.Policy} }), func(b *testQueue) error {
			return Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields("max_attempts", "5"))
		}},
		{setPolicyScript, queue(func(k Keys) []string { return []string{k.Policy, k.Changes} }), func(b *testQueue) error {
			_, err := SetPolicy(b.ctx, b.c, b.k, nil, fields("max_attempts", "5"))
			return err
		}},
		{registerScript, func(b *testQueue) []string { return []string{b.g.Queues} }, func(b *testQueue) error {
			_, err := Register(b.ctx, b.c, b.g, []string{"q"})
			return err
		}},
		{heartbeatScript, func(b *testQueue) []string { return []string{b.g.Bridges} }, func(b *testQueue) error {
			_, _, err := Heartbeat(b.ctx, b.c, b.g, "b1", time.Minute)
			return err
		}},
		{takeScript, func(b *testQueue) []string { return []string{b.g.Bucket("bucket")} }, func(b *testQueue) error {
			_, err := Take(b.ctx, b.c, b.g.Bucket("bucket"), time.Second, 5, 1)
			return err
		}},
		{claimScript, queue(func(k Keys) []string { return []string{k.Once("g", "m")} }), func(b *testQueue) error {
			_, _, err := Claim(b.ctx, b.c, b.k.Once("g", "m"), "a", time.Minute, time.Hour)
			return err
		}},
		{orphansScript, queue(func(k Keys) []string { return []string{k.Due, k.Payload} }), func(b *testQueue) error {
			_, err := SweepOrphans(b.ctx, b.c, b.k.Due, b.k.Payload, "", 10, []Watched{{Orphan{"orphan", 1}, true}})
			return err
		}},
		{findOrphansScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload}
		}), func(b *testQueue) error {
			_, _, _, err := ScanOrphans(b.ctx, b.c, b.k.Due, b.k.Payload, "0", 10)
			return err
		}},
		{findEntriesScript, stream, func(b *testQueue) error {
			_, _, err := FindEntries(b.ctx, b.c, b.k.Stream, "m", EntrySearch{Limit: 10})
			return err
		}},
		{searchDueScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta}
		}), func(b *testQueue) error {
			f := SearchFilter{States: []string{SearchScheduled}, Text: "p"}
			_, _, err := SearchDue(b.ctx, b.c, b.k, f, DueSearch{Limit: 10})
			return err
		}},
		{searchEntriesScript, stream, func(b *testQueue) error {
			f := SearchFilter{States: []string{SearchReady, SearchPending}}
			_, _, err := SearchEntries(b.ctx, b.c, b.k.Stream, f, StreamSearch{Limit: 10})
			return err
		}},
		{findLostScript, stream, func(b *testQueue) error {
			_, err := LostEntries(b.ctx, b.c, b.k.Stream, "g", []string{"5-1", "7-1"})
			return err
		}},
		{recurScript, queue(func(k Keys) []string { return k.ofRecurrences() }), func(b *testQueue) error {
			_, err := Recur(b.ctx, b.c, b.k, "r", "", "{}", "t", false)
			return err
		}},
		{removeRecurrenceScript, queue(func(k Keys) []string { return k.ofRecurrences() }), func(b *testQueue) error {
			_, _, err := RemoveRecurrence(b.ctx, b.c, b.k, "r", false)
			return err
		}},
		{planScript, queue(func(k Keys) []string { return k.ofRecurrences(k.Wake) }), func(b *testQueue) error {
			_, _, err := PlanOccurrences(b.ctx, b.c, b.k, "r", "v t 3-3 1 3", upTo(time.UnixMilli(4)), []byte("p"),
				`{"h:a":"b"}`,
				[]Occurrence{{At: time.UnixMilli(4), Due: time.UnixMilli(4)}})
			return err
		}},
		{runRecurrenceScript, queue(func(k Keys) []string {
			return k.ofRecurrences(k.Wake)
		}), func(b *testQueue) error {
			_, _, _, err := RunRecurrence(b.ctx, b.c, b.k, "r", []byte("p"), `{"h:a":"b"}`, true)
			return err
		}},
		{findUnfinishedScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Stream}
		}), func(b *testQueue) error {
			_, _, err := FindUnfinished(b.ctx, b.c, b.k, &Unfinished{}, 10, []string{"m2"})
			return err
		}},
		{surveyScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.Calm, k.Recurring, k.Turns,
				k.Planned, k.Leases, k.Progress}
		}), func(b *testQueue) error {
			looks, err := Survey(b.ctx, b.c, []Keys{b.k}, true)
			if err == nil {
				err = cmp.Or(looks[0].Err, looks[0].SideErr)
			}
			return err
		}},
		{glanceScript, queue(func(k Keys) []string {
			return []string{k.Due, k.Meta, k.Stream, k.Dead, k.Policy, k.Calm}
		}), func(b *testQueue) error {
			glances, err := Glance(b.ctx, b.c, []GlanceAt{{Keys: b.k, Newest: 100}}, 10, time.Hour)
			if err == nil {
				err = glances[0].Err
			}
			return err
		}},
	}
}

// Tests that go through the table of calls must not miss a script.
func TestEveryScriptHasACall(t *testing.T) {
	var named []*script
	for _, c := range calls() {
		named = append(named, c.script)
	}
	for _, s := range scripts() {
		if !slices.Contains(named, s) {
			t.Errorf("%s is in no table of calls", s.name)
		}
	}
}

// fixture fills the keys of the queue with data on which each call can act.
func (b *testQueue) fixture() {
	b.Helper()
	k, g := b.k, b.g
	b.all([][]string{
		{"XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM"},
		{"XADD", k.Stream, "5-1", "id", "m", "payload", "p", "attempt", "1", "due_ms", "5", "h:a", "b"},
		{"XADD", k.Stream, "6-1", "id", "m2", "payload", "p", "attempt", "1", "due_ms", "5"},
		{"XREADGROUP", "GROUP", "g", "c1", "COUNT", "2", "STREAMS", k.Stream, ">"},
		{"ZADD", k.Due, "5", "due"},
		{"HSET", k.Payload, "due", "p", "orphan", "p"},
		{"HSET", k.Meta, "due", `{"h:a":"b"}`},
		{"XADD", k.Dead, "4-1", "id", "d", "payload", "p", "attempt", "3", "group", "g", "reason", "max_attempts"},
		{"XADD", k.Wake, "1-1", "due_ms", "5"},
		{"ZADD", k.Turns, "0", "k" + Separator + "busy" + Separator + "9-9"},
		{"ZADD", k.Seen, "5", "old"},
		{"HSET", k.Policy, "max_attempts", "3"},
		{"HSET", k.Recurring, "r", `{"every_ms":1000}`},
		{"HSET", k.Planned, "r", "v t 3-3 1 3", "", "1"},
		{"ZADD", k.Due, "9e12", "r@3"},
		{"HSET", g.Queues, "other", "1"},
		{"ZADD", g.Bridges, "5", "gone"},
		{"XADD", g.Wake, "1-1", "queues", "1"},
	})
}

// all runs commands that must not fail in one round trip.
func (b *testQueue) all(list [][]string) []rueidis.RedisMessage {
	b.Helper()
	var cmds rueidis.Commands
	for _, words := range list {
		cmds = append(cmds, b.c.B().Arbitrary(words[0]).Args(words[1:]...).Build())
	}
	var out []rueidis.RedisMessage
	for i, r := range b.c.DoMulti(b.ctx, cmds...) {
		m, err := r.ToMessage()
		if err != nil && !rueidis.IsRedisNil(err) {
			b.Fatalf("%.200q: %v", list[i], err)
		}
		out = append(out, m)
	}
	return out
}

// dump returns all that is stored under the queue's keys, groups and pending lists included.
func (b *testQueue) dump() map[string]string {
	b.Helper()
	keys, out := append(keysOf(b.k), b.g.Queues, b.g.Bridges, b.g.Wake), map[string]string{}
	var list [][]string
	for _, key := range keys {
		if b.inProcess() { // DUMP knows strings only
			list = append(list, map[string][]string{
				"zset": {"ZRANGE", key, "0", "-1", "WITHSCORES"}, "hash": {"HGETALL", key}, "stream": {"XRANGE", key, "-", "+"},
				"string": {"GET", key}, "none": {"EXISTS", key},
			}[b.text("TYPE", key)])
		} else {
			list = append(list, []string{"DUMP", key})
		}
	}
	for i, m := range b.all(list) {
		out[keys[i]] = m.String()
	}
	return out
}

// Each script refuses each of its keys if it has another type, before the first write.
func TestWrongTypesAreRefusedBeforeTheFirstWrite(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, c := range calls() {
			for _, key := range c.keys(b) {
				b.do(append([]string{"DEL", b.g.Queues, b.g.Bridges, b.g.Wake}, keysOf(b.k)...)...)
				b.fixture()
				b.do("SET", key, "not this")
				before := b.dump()
				err := c.run(b)
				if err == nil && slices.Contains(c.spared(b), key) {
					if now := b.dump(); now[key] != before[key] {
						b.Errorf("%s changed %s, a string", c.script.name, key)
					}
					continue
				}
				inRow := c.script == surveyScript || c.script == glanceScript // the error is that of one queue in the reply
				if !errors.Is(err, ErrWrongType) || Temporary(err) || Ambiguous(err) && !inRow {
					b.Errorf("%s with %s as a string: %v", c.script.name, key, err)
				}
				for name, now := range b.dump() {
					if now != before[name] {
						b.Errorf("%s with %s as a string changed %s:\n%s\n%s", c.script.name, key, name, before[name], now)
					}
				}
			}
		}
	})
}

// keysOf returns the keys of a queue, except those of its history, rate, leases and push targets.
func keysOf(k Keys) []string {
	return []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Wake, k.Policy, k.Seen, k.Calm, k.Recurring,
		k.Planned, k.Turns}
}
