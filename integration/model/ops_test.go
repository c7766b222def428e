package model

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/duestream/duestream/lua"
)

const (
	idleTime    = 30 * time.Minute // the visibility timeout; an abandoned entry is made to look idle for twice as long
	tokenWindow = 10 * time.Minute
	plenty      = 1 << 20
	ownID       = "fresh" // how an ID begins that no other message has
	unknown     = "1-1"   // an entry ID and a dead-letter ID that never existed
)

var (
	idNames   = []string{"a", "b", "c"}
	consumers = []string{"w1", "w2"}
	policies  = []lua.Attempts{{Max: 3, Delays: []time.Duration{0, time.Hour}}, {Max: 2, Delays: []time.Duration{2 * time.Hour}},
		{Max: 3, Delays: []time.Duration{0, time.Hour}, For: 90 * time.Minute, MaxSnoozes: 2, MaxCrashes: 1},
		{Max: 2, Delays: []time.Duration{0, time.Hour}, MaxCrashes: 3}}
)

// memory is what callers remember between calls.
type memory struct {
	token   lua.Token // of the last enqueue that had one
	items   []lua.Item
	tokens  int
	serials *int              // of a queue, shared by all its partitions
	sweep   string            // the cursor of trim
	cursors map[string]string // cursors of reclaim, by group
	turns   lua.TurnsPassed   // where the last sweep of keys stopped
}

// actions are the steps of a sequence. Rapid prefers names that sort early, so the steps that move messages on are
// listed twice.
func (r *run) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { r.audit() }}
	for i, step := range []struct {
		name string
		do   func()
	}{
		{"enqueue", r.enqueue}, {"drain", r.drain}, {"read", r.read}, {"fail", r.fail}, {"time", r.pass}, {"abandon", r.abandon},
		{"reclaim", r.reclaim},
		{"ack", r.ack}, {"enqueue", r.enqueue}, {"drain", r.drain}, {"read", r.read}, {"fail", r.fail}, {"time", r.pass},
		{"ack plainly", r.ackPlainly}, {"trim", r.trim}, {"extend", r.extend}, {"redrive", r.redrive}, {"repeat", r.repeat},
		{"skip", r.skip},
		{"cancel", r.cancel}, {"reschedule", r.reschedule}, {"produce plainly", r.produce}, {"claim", r.claim},
		{"cancel retries", r.cancelRetries}, {"reschedule retries", r.rescheduleRetries},
		{"expire", r.expire},
		{"read history", r.readHistory}, {"create group", r.createGroup}, {"lose body", r.loseBody},
		{"damage meta", r.damageMeta},
		{"add entry", r.addEntry}, {"purge", r.purge}, {"hold", r.hold}, {"limit", r.limit}, {"survey", r.survey},
		{"drop consumers", r.dropConsumers}, {"destroy group", r.destroyGroup}, {"read", r.read}, {"recur", r.recur},
		{"plan", r.plan}, {"plan", r.plan}, {"run", r.runByHand}, {"remove recurrence", r.removeRecurrence},
		{"pass turns", r.passTurns}, {"lose turns", r.loseTurns}, {"receive", r.receive},
	} {
		actions[fmt.Sprintf("%02d %s", i, step.name)] = func(*rapid.T) { step.do() }
	}
	return actions
}

// unless makes rapid draw another step when this one cannot do anything.
func (r *run) unless(futile bool) {
	if futile {
		r.SkipNow()
	}
}

func pick[T any](r *run, what string, from ...T) T { return rapid.SampledFrom(from).Draw(r.T, what) }

func seldom(r *run, what string) bool {
	return pick(r, what, false, false, false, false, false, false, true, false)
}

func (r *run) payload() []byte {
	*r.serials++
	return fmt.Appendf(nil, "m%d:%s", *r.serials,
		pick(r, "body", "", "\x00\xff", "a longer payload that matters to limits by bytes"))
}

// at is a point in time. The server's clock has passed r.start when it is used.
func (r *run) at(d time.Duration) time.Time { return time.UnixMilli(r.start).Add(d) }

func (r *run) when() lua.When {
	return pick(r, "when", lua.After(0), lua.After(time.Hour), lua.After(3*time.Hour), lua.At(r.at(-time.Hour)),
		lua.At(r.at(2*time.Hour)))
}

func (r *run) meta() string {
	most, expires := pick(r, "max_attempts", 0, 0, 2, 1), pick(r, "expires", 0, 0, 0, 0, 0, 2*time.Hour, -time.Hour, 0)
	headers := pick(r, "headers", nil, map[string]string{"trace": "grün/7", "": "x"})
	more := pick(r, "retries", lua.Retries{}, lua.Retries{}, lua.Retries{}, lua.Retries{Delays: "1,7200000"},
		lua.Retries{For: 2 * time.Hour}, lua.Retries{Delays: "3600000,0"}, lua.Retries{Delays: "soon", For: time.Millisecond},
		lua.Retries{MaxSnoozes: 1}, lua.Retries{MaxCrashes: 2}).Fields()
	if key := pick(r, "key", append(keys, "", "", "", "")...); key != "" {
		more = append(more, lua.FieldValue{Field: lua.FieldKey, Value: key})
	}
	if expires == 0 {
		return lua.EncodeMeta(headers, most, time.Time{}, more...)
	}
	return lua.EncodeMeta(headers, most, r.at(expires), more...)
}

func (r *run) junk() string {
	return pick(r, "junk", "junk", `[]`, `null`, `{"max_attempts":5}`, `{"h:a":null}`, `{"attempt":"0"}`,
		`{"payload":"x"}`, `{"expires_ms":"soon"}`, `{"id":""}`, `{"key":""}`, "{\"h:a\":\"\xff\"}", "{}\x00")
}

func (r *run) enqueue() {
	token := lua.Token{Window: tokenWindow}
	if pick(r, "token", true, true, false) {
		r.tokens++
		token.Name = fmt.Sprint("call", r.tokens)
		if pick(r, "done", true, false) {
			token.Done = r.token.Name
		}
	}
	items := make([]lua.Item, pick(r, "items", 1, 1, 2, 3))
	for i := range items {
		items[i] = lua.Item{ID: pick(r, "id", idNames...), When: r.when(), Payload: r.payload(), Meta: r.meta()}
		if seldom(r, "malformed") {
			items[i].Meta = r.junk()
		}
		if items[i].Dedup = pick(r, "dedup", lua.Refuse, lua.Fresh, lua.Window(2*time.Hour), lua.Replace,
			lua.ReplaceLater, lua.ReplaceEarlier); items[i].Dedup == lua.Fresh &&
			pick(r, "own ID", true, false) {
			items[i].ID = fmt.Sprint(ownID, *r.serials)
		}
	}
	r.call("enqueue", token, items)
	if token.Name != "" {
		r.token, r.items = token, items
	}
}

// repeat does what a client does when the reply was lost. After the token's window ends, a client does not repeat.
func (r *run) repeat() {
	r.unless(r.q.Calls[r.token.Name].Ends <= r.last)
	r.call("repeat", r.token, r.items)
}

func (r *run) call(what string, token lua.Token, items []lua.Item) {
	before, fresh := r.q, lua.AllFresh(items, time.UnixMilli(r.last))
	for _, item := range items {
		fresh = fresh && strings.HasPrefix(item.ID, ownID)
	}
	fresh = fresh && !slices.Contains(before.Calls[token.Done].Refused, true) && pick(r, "fresh", true, false)
	what = fmt.Sprintf("%s %+v %s, fresh: %v", what, token, showItems(items), fresh)
	receipts := step(r, what, func(ctx context.Context) ([]lua.Receipt, error) {
		if fresh {
			return lua.EnqueueFresh(ctx, r.c, r.k, token, items)
		}
		return lua.Enqueue(ctx, r.c, r.k, token, items, lua.Durability{})
	}, func(q *Queue, _ []lua.Receipt) []lua.Receipt {
		for _, item := range items {
			// A repeat writes again what the call writes outside the script, so it undoes any damage done meanwhile.
			if m, there := q.Scheduled[item.ID]; there && fresh && item.Meta != "" {
				q.Scheduled[item.ID] = NewMessage(item.ID, m.Due, m.Payload, item.Meta)
			}
		}
		return q.Enqueue(token, items)
	})
	last := map[string]lua.Item{} // by ID, for the IDs that are scheduled
	for i, receipt := range receipts {
		if receipt.Verdict <= lua.Duplicate || receipt.Verdict == lua.Repeated {
			continue
		}
		if old, replaced := last[items[i].ID]; replaced {
			r.book.withdraw(Message{Payload: string(old.Payload)})
		} else if old, replaced := before.Scheduled[items[i].ID]; replaced {
			r.book.withdraw(old)
		}
		r.book.accept(items[i].Payload)
		if delete(last, items[i].ID); receipt.Verdict != lua.Ready {
			last[items[i].ID] = items[i]
		}
	}
}

func showItems(items []lua.Item) (out []string) {
	for _, it := range items {
		out = append(out, fmt.Sprintf("{%s at %s payload %.8q meta %s dedup %q}", it.ID, it.When, it.Payload, it.Meta, it.Dedup))
	}
	return out
}

func (r *run) cancel() {
	r.unless(len(r.q.Scheduled) == 0)
	r.cancelIDs(pick(r, "id", idNames...), pick(r, "id", idNames...))
}

func (r *run) cancelIDs(ids ...string) {
	before := r.q
	done := step(r, fmt.Sprint("cancel ", ids), func(ctx context.Context) ([]bool, error) {
		return lua.Cancel(ctx, r.c, r.k, ids, lua.Durability{})
	}, func(q *Queue, _ []bool) []bool { return q.Cancel(ids) })
	for i, id := range ids {
		if done[i] {
			r.book.withdraw(before.Scheduled[id])
		}
	}
}

func (r *run) reschedule() {
	type reply struct {
		due   int64
		moved bool
	}
	r.unless(len(r.q.Scheduled) == 0)
	id, to := pick(r, "id", idNames...), r.when()
	step(r, fmt.Sprintf("reschedule %s to %s", id, to), func(ctx context.Context) (reply, error) {
		due, moved, err := lua.Reschedule(ctx, r.c, r.k, id, to, lua.Durability{})
		return reply{due.UnixMilli(), moved}, err
	}, func(q *Queue, _ reply) reply {
		due, moved := q.Reschedule(id, to)
		return reply{due, moved}
	})
}

// produce is a producer that does not use the scripts: it sends a bare ZADD, or the transaction of the protocol,
// which replaces what is scheduled.
func (r *run) produce() {
	ms := float64(r.start)
	id, due := pick(r, "member", append(idNames[:3:3], "", "\xff")...), pick(r, "due", ms-3.6e6, ms+7.2e6, ms-0.5, ms+3.6e6+0.5,
		5, 1e15, math.Inf(-1))
	add := []string{"ZADD", r.k.Due, score(due), id}
	if old := r.q.Scheduled[id]; pick(r, "bare", true, false) {
		r.plain(fmt.Sprintf("bare %q", add), [][]string{add},
			func(q *Queue) { q.Scheduled[id] = NewMessage(id, due, old.Payload, old.Raw) })
		return
	}
	payload, meta := string(r.payload()), r.junk()
	if pick(r, "well-formed", true, false) {
		meta = r.meta()
	}
	r.book.withdraw(r.q.Scheduled[id])
	write := []string{"HSET", r.k.Meta, id, meta}
	if meta == "" {
		write = []string{"HDEL", r.k.Meta, id}
	}
	r.plain(fmt.Sprintf("transaction %q %.8q %s", add, payload, meta), [][]string{
		{"MULTI"}, {"HSET", r.k.Payload, id, payload}, write, add, {"EXEC"},
	}, func(q *Queue) { q.Scheduled[id] = NewMessage(id, due, payload, meta) })
	r.book.accept([]byte(payload))
}

func (r *run) drain() {
	r.unless(len(r.q.Scheduled) == 0)
	r.drainUpTo(pick(r, "limit", 100, 2, 1), pick(r, "max_bytes", plenty, plenty, 60, 1))
}

func (r *run) drainUpTo(limit, maxBytes int) lua.Drained {
	before := r.seen.newest
	defer func() { r.inOrder(before) }()
	return step(r, fmt.Sprintf("drain %d, %d bytes", limit, maxBytes), func(ctx context.Context) (lua.Drained, error) {
		d, err := lua.Drain(ctx, r.c, r.k, limit, maxBytes)
		d = withoutTimes(r.q, d)
		if d.Wait > 0 { // the model's clock counts whole milliseconds
			d.Wait = (d.Wait + time.Millisecond - 1).Truncate(time.Millisecond)
		}
		return d, err
	}, func(q *Queue, _ lua.Drained) lua.Drained { return withoutTimes(q, q.Drain(limit, maxBytes)) })
}

func (r *run) trim() {
	r.unless(len(r.q.Stream)+len(r.seen.windows) == 0)
	r.trimUpTo(pick(r, "limit", 1, 2, 100), pick(r, "max_bytes", plenty, 0))
}

func (r *run) trimUpTo(limit, maxBytes int) lua.Trimmed {
	cursor := r.sweep
	t := step(r, fmt.Sprintf("trim from %q, %d, %d bytes", cursor, limit, maxBytes), func(ctx context.Context) (lua.Trimmed,
		error) {
		return lua.Trim(ctx, r.c, r.k, cursor, limit, maxBytes)
	}, func(q *Queue, got lua.Trimmed) lua.Trimmed {
		want := q.Trim(cursor, limit, maxBytes, got)
		want.Leases = got.Leases // the model has no notes of leases
		if r.clients && got.Windows < want.Windows {
			want.Windows = got.Windows // a client has forgotten its last call meanwhile
		}
		return want
	})
	r.sweep = t.Cursor
	return t
}

// pass lets time pass: everything that is still to come moves nearer.
func (r *run) pass() {
	r.unless(len(r.q.Scheduled)+len(r.seen.windows) == 0)
	r.passBy(pick(r, "time", time.Hour, 30*time.Minute, 5*time.Hour))
}

func (r *run) passBy(d time.Duration) {
	past := r.q.clone()
	past.Pass(d)
	var commands [][]string
	for _, member := range past.Order() {
		m := past.Scheduled[member]
		commands = append(commands, []string{"ZADD", r.k.Due, "XX", score(m.Due), member})
		if m.Raw != r.q.Scheduled[member].Raw {
			commands = append(commands, []string{"HSET", r.k.Meta, member, m.Raw})
		}
	}
	for _, window := range r.seen.windows {
		commands = append(commands, []string{"ZINCRBY", r.k.Seen, strconv.FormatInt(-d.Milliseconds(), 10), window.Member})
	}
	if notes := slices.Sorted(maps.Keys(past.Turns)); len(notes) > 0 {
		add := []string{"ZADD", r.k.Turns}
		for _, note := range notes {
			add = append(add, "0", note)
		}
		commands = append(commands, []string{"DEL", r.k.Turns}, add)
	}
	if len(commands) > 0 {
		r.plain("clock: "+d.String()+" pass", commands, func(q *Queue) { q.Pass(d) })
	}
}

// damageMeta overwrites the meta of a scheduled member, which may be a retry.
func (r *run) damageMeta() {
	members := r.q.Order()
	r.unless(len(members) == 0)
	member, meta := members[pick(r, "member", indices(members)...)], r.junk()
	r.plain(fmt.Sprintf("HSET of meta %q %s", member, meta), [][]string{{"HSET", r.k.Meta, member, meta}}, func(q *Queue) {
		m := q.Scheduled[member]
		q.Scheduled[member] = NewMessage(member, m.Due, m.Payload, meta)
	})
}

// settle runs the queue to its end: everything becomes due, is delivered to every group, is acknowledged and is
// freed. Nothing may be left.
func (r *run) settle() {
	r.empty()
	r.noneOwed()
}

// empty does the same for one partition.
func (r *run) empty() {
	r.setHeld(false)
	r.setFlow(Flow{})
	if len(r.q.Groups) == 0 {
		r.ensureGroup(groupNames[0]) // without a group, nothing is ever freed
	}
	for _, member := range r.q.Order() {
		if due := r.q.Scheduled[member].Due; due >= never && !isParked(due) {
			r.cancelIDs(member)
		}
	}
	// longer than every delay
	r.passBy(240 * time.Hour)
	r.deliverAll()
	for len(r.q.Dead) > 0 {
		r.purgeLetter(r.q.Dead[0])
	}
	for t := r.trimUpTo(5, plenty); t.Freed > 0 || t.Cursor != "" || t.Windows > 0; t = r.trimUpTo(5, plenty) {
	}
	r.audit()
	r.survey()
	for name, g := range r.q.Groups {
		if len(g.Pending) > 0 {
			r.refuse("%s still holds %v", name, g.Pending)
		}
	}
	if q := r.seen; len(q.Scheduled)+len(q.Stream)+len(q.Dead)+len(q.windows)+len(q.Turns) > 0 {
		r.refuse("left over:\n%v\nwindows %v", q.lines(0), q.windows)
	}
}

// noneOwed checks that every group was given everything.
func (r *run) noneOwed() {
	for group, owed := range r.book.owed {
		if len(owed) > 0 || len(r.book.waiting) > 0 {
			r.refuse("%s was never done with %v; never ready: %v", group, owed, r.book.waiting)
		}
	}
}

func (r *run) audit() {
	if lost := r.book.audit(r.seen.Queue); lost != "" {
		r.refuse("lost: %s", lost)
	}
	r.oneAtATime()
}
