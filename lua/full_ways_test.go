package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// takesIn names the scripts that store new data: a full server refuses these, and no others.
var takesIn = []*script{enqueueScript, enqueueFreshScript, enqueueOneScript, restoreScript, recurScript, planScript,
	runRecurrenceScript}

// fullWay is a way through a script whose first write differs from that of the call in the table of calls.
type fullWay struct {
	script *script
	name   string
	before func(b *testQueue)
	run    func(b *testQueue) error
}

// fullWays lists these ways. On a full server a script must begin with a write that frees or changes nothing, in every
// branch.
func fullWays() []fullWay {
	bucket := func(b *testQueue) string { return b.g.Bucket("b") }
	taken := func(b *testQueue) {
		if _, err := Take(b.ctx, b.c, bucket(b), time.Second, 5, 3); err != nil {
			b.Fatal(err)
		}
	}
	claimed := func(b *testQueue) { b.claim("a") }
	endClaim := func(happened bool) func(b *testQueue) error {
		return func(b *testQueue) error {
			var token int64
			fmt.Sscan(b.text("GET", b.k.Once("g", "m")), &token)
			_, err := EndClaim(b.ctx, b.c, b.k.Once("g", "m"), "a", token, happened, time.Hour)
			return err
		}
	}
	overdue := func(settings ...string) func(b *testQueue) {
		return func(b *testQueue) {
			b.groups("g")
			b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
			if settings != nil {
				b.set(settings...)
			}
		}
	}
	drain := func(b *testQueue) error {
		_, err := Drain(b.ctx, b.c, b.k, 10, 1<<20)
		return err
	}
	held := func(settings ...string) func(b *testQueue) {
		return func(b *testQueue) {
			overdue(settings...)(b)
			b.drainAndRead("g")
		}
	}
	pending := func(b *testQueue) []Held { return []Held{{Entry: b.raw(b.k.Stream)[0].ID, Key: "a"}} }
	failed := func(b *testQueue) {
		held()(b)
		b.fail("g", pending(b)[0].Entry, ActionRetry, ReasonMaxAttempts, "x")
	}
	return []fullWay{
		{takeScript, "out of a bucket that nobody used", nil, func(b *testQueue) error {
			_, err := Take(b.ctx, b.c, bucket(b), time.Second, 5, 1)
			return err
		}},
		{takeScript, "out of one that is in use", taken, func(b *testQueue) error {
			_, err := Take(b.ctx, b.c, bucket(b), time.Second, 5, 1)
			return err
		}},
		{takeScript, "gives back", taken, func(b *testQueue) error {
			return PutBack(b.ctx, b.c, bucket(b), time.Second, 5, 1)
		}},
		{takeScript, "looks, at another rate", taken, func(b *testQueue) error {
			_, err := UntilNext(b.ctx, b.c, bucket(b), time.Hour, 5)
			return err
		}},
		{takeScript, "refuses, at another rate", taken, func(b *testQueue) error {
			_, err := Take(b.ctx, b.c, bucket(b), time.Hour, 3, 3)
			return err
		}},
		{claimScript, "of an effect that nobody claimed", nil, func(b *testQueue) error {
			_, _, err := Claim(b.ctx, b.c, b.k.Once("g", "m"), "a", time.Minute, time.Hour)
			return err
		}},
		{claimScript, "ends with the effect", claimed, endClaim(true)},
		{claimScript, "ends without the effect", claimed, endClaim(false)},
		{drainScript, "keyed messages", overdue(), drain},
		{drainScript, "at a rate", overdue("rate", "1/h", "burst", "1"), drain},
		{drainScript, "below a ready limit", overdue("ready_limit", "1"), drain},
		{drainScript, "with a history", overdue("history", "1000", "history_ms", "3600000"), drain},
		{ackScript, "a keyed message", held(), func(b *testQueue) error {
			_, err := Ack(b.ctx, b.c, b.k, "g", pending(b))
			return err
		}},
		{retryScript, "a keyed message", held(), func(b *testQueue) error {
			_, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{{Held: pending(b)[0], Action: ActionRetry}})
			return err
		}},
		{retryScript, "gives a keyed message up", held(), func(b *testQueue) error {
			_, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{{Held: pending(b)[0], Action: ActionDead}})
			return err
		}},
		{retryScript, "snoozes", held("max_snoozes", "5"), func(b *testQueue) error {
			snoozed := Failure{Held: pending(b)[0], Action: ActionSnooze, Delay: time.Second}
			_, err := Retry(b.ctx, b.c, b.k, "g", policy, []Failure{snoozed})
			return err
		}},
		{reclaimScript, "a keyed message", func(b *testQueue) {
			held()(b)
			b.do("XCLAIM", b.k.Stream, "g", "c", "0", pending(b)[0].Entry, "IDLE", "99999", "JUSTID")
		}, func(b *testQueue) error {
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Second, Limit: 10,
				MaxBytes: 1000})
			return err
		}},
		{reclaimScript, "entries that a worker gave back", func(b *testQueue) {
			for i, e := range b.deliver([]string{"g"}, "1", "2", "3") {
				b.giveBack("g", []string{nackSilent, nackFail, nackFatal}[i], e.EntryID)
			}
		}, func(b *testQueue) error {
			done, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Hour, Limit: 10,
				MaxBytes: 1000})
			redistest.Want(b, "reclaimed", done, Reclaimed{Retried: 2, Dead: 1})
			return err
		}},
		{cancelEntriesScript, "an entry that a worker gave back", func(b *testQueue) {
			b.giveBack("g", nackFail, b.deliver([]string{"g", "other"}, "1")[0].EntryID)
		}, func(b *testQueue) error {
			_, _, err := CancelEntries(b.ctx, b.c, b.k, EntryWalk{Limit: 10}, []string{"1"}, Durability{})
			redistest.Want(b, "pending", b.pending("g"), 0)
			return err
		}},
		{cancelRetriesScript, "a keyed message", failed, func(b *testQueue) error {
			_, _, err := CancelRetries(b.ctx, b.c, b.k, Walk{Limit: 100}, []string{"a1"})
			return err
		}},
		{rescheduleRetriesScript, "a keyed message", failed, func(b *testQueue) error {
			_, _, err := RescheduleRetries(b.ctx, b.c, b.k, Walk{Limit: 100}, At(time.UnixMilli(3)), []string{"a1"})
			return err
		}},
		{cancelScript, "a message that waits for its key", held(), func(b *testQueue) error {
			_, err := Cancel(b.ctx, b.c, b.k, []string{"a2"}, Durability{})
			return err
		}},
		{passTurnsScript, "of an entry that is gone", func(b *testQueue) {
			held()(b)
			b.do("XACK", b.k.Stream, "g", pending(b)[0].Entry)
			b.do("XDEL", b.k.Stream, pending(b)[0].Entry)
		}, func(b *testQueue) error {
			_, err := PassTurns(b.ctx, b.c, b.k, TurnsPassed{}, 10)
			return err
		}},
		{removeRecurrenceScript, "takes back what was planned", func(b *testQueue) {
			b.do("HSET", b.k.Recurring, "r", `{"every_ms":1000}`)
			b.do("HSET", b.k.Planned, "r", "v t 3-9000000000000 1 8999999999999", "", "1")
			b.do("ZADD", b.k.Due, "8999999999999", "r@8999999999999")
		}, func(b *testQueue) error {
			_, _, err := RemoveRecurrence(b.ctx, b.c, b.k, "r", false)
			return err
		}},
		{trimScript, "behind a pending entry", func(b *testQueue) {
			b.groups("g")
			b.deliver([]string{"g"}, "1", "2", "3")
			b.do("XACK", b.k.Stream, "g", b.raw(b.k.Stream)[1].ID)
		}, func(b *testQueue) error {
			_, err := Trim(b.ctx, b.c, b.k, "", 1000, 1<<20)
			return err
		}},
		{configureScript, "sets where nothing is", nil, func(b *testQueue) error {
			return Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields("rate", "5"))
		}},
		{configureScript, "takes away", func(b *testQueue) { b.set("rate", "5") }, func(b *testQueue) error {
			return Configure(b.ctx, b.c, b.k.Policy, b.k.Wake, fields("rate", ""))
		}},
		{setPolicyScript, "with a record", func(b *testQueue) { b.set("burst", "5") }, func(b *testQueue) error {
			done, err := SetPolicy(b.ctx, b.c, b.k.As("token ana"), nil, fields("rate", "5", "burst", ""))
			redistest.Want(b, "done", done, true)
			return err
		}},
		{registerScript, "with a growth", func(b *testQueue) {
			b.do("HSET", b.g.Queues, "q", "1")
		}, func(b *testQueue) error {
			_, err := Register(b.ctx, b.c, b.g, []string{"q", "p"})
			return err
		}},
		{deleteEmptyScript, "an empty queue", func(b *testQueue) { b.set("rate", "5") }, func(b *testQueue) error {
			deleted, err := DeleteEmpty(b.ctx, b.c, b.k, true)
			redistest.Want(b, "deleted", deleted, true)
			return err
		}},
		{setTargetScript, "a new one", nil, func(b *testQueue) error {
			done, err := SetTarget(b.ctx, b.c, b.k, "g", "", "{}", 1)
			redistest.Want(b, "written", done, true)
			return err
		}},
		{setTargetScript, "in the place of another", func(b *testQueue) {
			b.do("HSET", b.k.Push, "g", "{}")
		}, func(b *testQueue) error {
			done, err := SetTarget(b.ctx, b.c, b.k, "g", "{}", "{ }", 1)
			redistest.Want(b, "written", done, true)
			return err
		}},
		{withdrawScript, "a retry that holds its key", failed, func(b *testQueue) error {
			page, err := Export(b.ctx, b.c, b.k, Exported{}, 10, 1<<20)
			if err != nil {
				return err
			}
			retry := page[slices.IndexFunc(page, func(one Exported) bool { return strings.Contains(one.Member, Separator) })]
			removed, err := Withdraw(b.ctx, b.c, b.k, retry)
			redistest.Want(b, "removed", removed, true)
			b.wantNoTurns()
			return err
		}},
		{ensureGroupScript, "without a stream", nil, func(b *testQueue) error {
			_, err := EnsureGroup(b.ctx, b.c, b.k, "g")
			return err
		}},
	}
}

// In every branch, the first write of a script must be one that a full server accepts, unless the script stores new
// data (see takesIn); then the server accepts the script's further writes, too. Before, the script that paces push
// targets began with another write in every branch, so a target with a rate stood still for as long as memory was full.
func TestFullServerRefusesNoWayThroughAScript(t *testing.T) {
	t.Run("own", func(t *testing.T) { newTestQueue(t, redistest.Own(t)).fullWays() })
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		if !strings.Contains(s.Name(), "docker") {
			t.Logf("%s is not this test's to fill", s.Name())
			return
		}
		newTestQueue(t, s).fullWays()
		newFunctionsQueue(t, s).fullWays()
	})
}

// fullWays prepares a queue for each way, fills the server, and checks that each way succeeds and writes.
func (b *testQueue) fullWays() {
	b.Helper()
	ways := fullWays()
	queues := make([]*testQueue, len(ways))
	for i, w := range ways {
		q := b.queue(fmt.Sprint("way", i))
		q.g = NewGlobals(b.g.Queues + fmt.Sprint("way", i))
		queues[i] = q
		if w.before != nil {
			w.before(q)
		}
	}
	b.do("CONFIG", "SET", "maxmemory", "1")
	defer b.do("CONFIG", "SET", "maxmemory", "0")
	for i, w := range ways {
		q, what := queues[i], w.script.name+" "+w.name
		state := func() string {
			return fmt.Sprint(q.dump(), q.all([][]string{{"GET", q.g.Bucket("b")}, {"GET", q.k.Once("g", "m")},
				{"HGETALL", q.k.Push}}))
		}
		before := state()
		if err := w.run(q); err != nil {
			b.Errorf("%s on a full server: %v", what, err)
		}
		redistest.Want(b, what+" wrote", state() != before, true)
	}
}
