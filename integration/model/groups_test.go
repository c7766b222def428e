package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
)

// group picks a group that fits. If there is none, rapid draws another step.
func (r *run) group(fits func(Group) bool) string {
	var fitting []string
	for _, name := range slices.Sorted(maps.Keys(r.q.Groups)) {
		if fits(r.q.Groups[name]) {
			fitting = append(fitting, name)
		}
	}
	r.unless(len(fitting) == 0)
	return pick(r, "group", append(fitting, fitting...)...)
}

func exists(Group) bool  { return true }
func holds(g Group) bool { return len(g.Pending) > 0 }

// holder picks a group that holds entries; seldom one that may not exist.
func (r *run) holder() string {
	group := r.group(holds)
	if seldom(r, "any group") {
		return pick(r, "group", groupNames...)
	}
	return group
}

func (r *run) pending(group string) []string {
	return slices.SortedFunc(maps.Keys(r.q.Groups[group].Pending), compareIDs)
}

// held picks entries that a worker believes that it holds. Mostly it is right.
func (r *run) held(group string) []lua.Held {
	from := r.pending(group)
	if len(from) == 0 || seldom(r, "not held") {
		from = append(from, unknown)
		for _, e := range r.q.Stream {
			from = append(from, e.ID) // not read, done already, or held by another worker
		}
	}
	held := make([]lua.Held, pick(r, "entries", 1, 1, 2, 3))
	for i := range held {
		held[i].Entry = from[pick(r, "entry", indices(from)...)]
		if e := r.q.entry(held[i].Entry); e != nil && pick(r, "with ID", false, true) {
			held[i].ID = e.messageID()
		} else if seldom(r, "another ID") {
			held[i].ID = "another" // possible after a failover
		}
		held[i].Key = r.toldKey(held[i].Entry)
	}
	return held
}

func (r *run) read() {
	last := ""
	if n := len(r.q.Stream); n > 0 {
		last = r.q.Stream[n-1].ID
	}
	r.deliver(r.group(func(g Group) bool { return less(g.Last, last) }), pick(r, "consumer", consumers...),
		pick(r, "count", 10, 1, 2))
}

// receive reads for a caller with a lease time of its own.
func (r *run) receive() {
	group, consumer := r.group(exists), pick(r, "consumer", consumers...)
	idle, n := pick(r, "idle", 0, 2*idleTime), pick(r, "count", 10, 1, 2)
	what := fmt.Sprintf("%s of %s receives %d, idle for %s", consumer, group, n, idle)
	step(r, what, func(ctx context.Context) (string, error) {
		got, err := lua.Receive(ctx, r.c, r.k, group, consumer, 0, idle, n)
		var ids []string
		for _, e := range got.Entries {
			ids = append(ids, e.EntryID)
		}
		return fmt.Sprint(ids, got.Last), err
	}, func(q *Queue, _ string) string {
		given, last := q.Receive(group, consumer, idle > 0, n)
		return fmt.Sprint(given, last)
	})
}

func (r *run) deliver(group, consumer string, n int) {
	words := []string{"XREADGROUP", "GROUP", group, consumer, "COUNT", strconv.Itoa(n), "STREAMS", r.k.Stream, ">"}
	r.plain(fmt.Sprintf("read of %d by %s of %s", n, consumer, group), [][]string{words},
		func(q *Queue) { q.Read(group, consumer, n) })
}

// skip acknowledges entries for other groups, as workers that know the field for do.
func (r *run) skip() {
	skipped := false
	for _, group := range groupNames {
		skipped = r.ackAll(group, func(id string) bool {
			e := r.q.entry(id)
			return e != nil && !meant(e.Fields[lua.FieldFor], group)
		}) || skipped
	}
	r.unless(!skipped)
}

func (r *run) ackAll(group string, which func(id string) bool) bool {
	var held []lua.Held
	for _, id := range r.pending(group) {
		if which(id) {
			held = append(held, lua.Held{Entry: id})
		}
	}
	if len(held) > 0 {
		r.ackHeld(group, held)
	}
	return len(held) > 0
}

func (r *run) ack() {
	group := r.holder()
	r.ackHeld(group, r.held(group))
}

func (r *run) ackHeld(group string, held []lua.Held) {
	before := r.q
	done := step(r, fmt.Sprintf("ack by %s of %v", group, held), func(ctx context.Context) ([]bool, error) {
		return lua.Ack(ctx, r.c, r.k, group, held)
	}, func(q *Queue, _ []bool) []bool { return q.Ack(group, held) })
	for i, h := range held {
		if done[i] {
			r.book.done(group, before.entry(h.Entry), h.Entry)
		}
	}
}

func (r *run) ackPlainly() {
	group := r.holder()
	r.xack(group, r.held(group))
}

func (r *run) xack(group string, held []lua.Held) {
	before := r.q
	words := []string{"XACK", r.k.Stream, group}
	for _, h := range held {
		words = append(words, h.Entry)
	}
	r.plain(fmt.Sprintf("%q", words), [][]string{words}, func(q *Queue) {
		for _, h := range held {
			delete(q.Groups[group].Pending, h.Entry)
		}
	})
	for _, h := range held {
		if _, pending := before.Groups[group].Pending[h.Entry]; pending {
			r.book.done(group, before.entry(h.Entry), h.Entry)
		}
	}
}

// fail fails entries of any worker, even of one that ignores the field for.
func (r *run) fail() {
	group, policy := r.holder(), pick(r, "policy", policies...)
	var failures []lua.Failure
	for _, h := range r.held(group) {
		failures = append(failures, lua.Failure{
			Held: h, Action: pick(r, "action", lua.ActionRetry, lua.ActionRetry, lua.ActionDead, lua.ActionRelease, lua.ActionSnooze),
			Delay: pick(r, "delay", -1, -1, 0, time.Hour), Error: pick(r, "error", "no", ""),
			Reason: pick(r, "reason", lua.ReasonMaxAttempts, lua.ReasonDeadLetter),
			Trace:  pick(r, "trace", "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
		})
	}
	for i := range failures {
		if f := &failures[i]; f.Action == lua.ActionSnooze {
			f.Delay = max(0, f.Delay)
		}
	}
	step(r, fmt.Sprintf("fail by %s, policy %v: %+v", group, policy, failures), func(ctx context.Context) ([]lua.Outcome, error) {
		return lua.Retry(ctx, r.c, r.k, group, policy, failures)
	}, func(q *Queue, _ []lua.Outcome) []lua.Outcome { return q.Retry(group, policy, failures) })
}

// abandon makes an entry look as if its worker had died: idle, with an unchanged delivery counter.
func (r *run) abandon() {
	group := r.group(holds)
	pending := slices.DeleteFunc(r.pending(group), func(id string) bool { return r.q.entry(id) == nil })
	r.unless(len(pending) == 0)
	id := pending[pick(r, "entry", indices(pending)...)]
	p := r.q.Groups[group].Pending[id]
	idle := strconv.FormatInt(2*idleTime.Milliseconds(), 10)
	r.plain(fmt.Sprintf("abandoning of %s in %s", id, group),
		[][]string{{"XCLAIM", r.k.Stream, group, p.Consumer, "0", id, "IDLE", idle, "JUSTID"}}, func(q *Queue) {
			p.Idle = true
			q.Groups[group].Pending[id] = p
		})
}

func (r *run) reclaim() {
	args := lua.ReclaimArgs{
		Group: r.holder(), Attempts: pick(r, "policy", policies...), MinIdle: pick(r, "min_idle", idleTime, idleTime, 0),
		Limit: pick(r, "limit", 100, 2, 1), MaxBytes: pick(r, "max_bytes", plenty, plenty, 150, 1),
	}
	args.Cursor = r.cursors[args.Group]
	reclaimed := step(r, fmt.Sprintf("reclaim %+v", args), func(ctx context.Context) (lua.Reclaimed, error) {
		reclaimed, err := lua.Reclaim(ctx, r.c, r.k, args)
		return reclaimed, r.unlessAbsent(args.Group, err)
	}, func(q *Queue, got lua.Reclaimed) lua.Reclaimed {
		want := q.Reclaim(args, got.Cursor)
		want.MoreLeases = got.MoreLeases // the model has no notes of leases
		return want
	})
	r.cursors[args.Group] = reclaimed.Cursor
}

func (r *run) extend() {
	group, consumer := r.holder(), pick(r, "consumer", consumers...)
	held := r.held(group)
	if p, ok := r.q.Groups[group].Pending[held[0].Entry]; ok && !seldom(r, "another's") {
		consumer = p.Consumer
	}
	step(r, fmt.Sprintf("extend by %s of %s: %v", consumer, group, held), func(ctx context.Context) ([]lua.Extended, error) {
		answers, err := lua.Extend(ctx, r.c, r.k, group, consumer, held)
		if _, there := r.q.Groups[group]; !there {
			answers = make([]lua.Extended, len(held))
		}
		return answers, r.unlessAbsent(group, err)
	}, func(q *Queue, _ []lua.Extended) []lua.Extended { return q.Extend(group, consumer, held) })
}

// unlessAbsent accepts ErrNoGroup as an answer for a group that does not exist, and for no other.
func (r *run) unlessAbsent(group string, err error) error {
	if _, ok := r.q.Groups[group]; !ok && errors.Is(err, lua.ErrNoGroup) {
		return nil
	}
	return err
}

func (r *run) createGroup() { r.ensureGroup(pick(r, "group", groupNames...)) }

func (r *run) ensureGroup(group string) {
	step(r, "ensure group "+group, func(ctx context.Context) (bool, error) {
		return lua.EnsureGroup(ctx, r.c, r.k, group)
	}, func(q *Queue, _ bool) bool { return q.EnsureGroup(group) })
}

func (r *run) destroyGroup() {
	group := r.group(exists)
	if pick(r, "spare", true, false) {
		return
	}
	r.plain("XGROUP DESTROY of "+group, [][]string{{"XGROUP", "DESTROY", r.k.Stream, group}},
		func(q *Queue) { delete(q.Groups, group) })
	r.book.destroyed(group, r.q)
}

func (r *run) dropConsumers() {
	group := r.group(exists)
	names := append([]string{"nobody"}, consumers...)
	step(r, "drop consumers of "+group, func(ctx context.Context) (int, error) {
		return lua.DropConsumers(ctx, r.c, r.k, group, names)
	}, func(q *Queue, _ int) int { return q.DropConsumers(group, names) })
}

// loseBody is an XDEL by another program: a group that holds the entry gets a dead letter, one that has not read it
// nothing.
func (r *run) loseBody() {
	r.unless(len(r.q.Stream) == 0)
	e := r.q.Stream[pick(r, "entry", indices(r.q.Stream)...)]
	r.plain("XDEL of entry "+e.ID, [][]string{{"XDEL", r.k.Stream, e.ID}}, func(q *Queue) { q.Lose(e.ID) })
	for name, g := range r.q.Groups {
		if _, pending := g.Pending[e.ID]; !pending && g.needs(e.ID) {
			r.book.done(name, &e, e.ID)
		}
	}
}

// claim is a claim that a worker must not make. Each counts as an attempt. (Redis drops a claimed entry without a
// body by itself: not done here.)
func (r *run) claim() {
	group := r.group(holds)
	pending := slices.DeleteFunc(r.pending(group), func(id string) bool { return r.q.entry(id) == nil })
	r.unless(len(pending) == 0)
	id, consumer := pending[pick(r, "entry", indices(pending)...)], pick(r, "consumer", consumers...)
	r.plain(fmt.Sprintf("XCLAIM of %s by %s of %s", id, consumer, group),
		[][]string{{"XCLAIM", r.k.Stream, group, consumer, "0", id}}, func(q *Queue) {
			q.Groups[group].Pending[id] = Pending{consumer, q.Groups[group].Pending[id].Deliveries + 1, false}
		})
}

// readHistory reads what a worker holds already. Redis counts that as deliveries.
func (r *run) readHistory() {
	group, consumer := r.group(holds), pick(r, "consumer", consumers...)
	words := []string{"XREADGROUP", "GROUP", group, consumer, "COUNT", "10", "STREAMS", r.k.Stream, "0"}
	r.plain(fmt.Sprintf("reading of history by %s of %s", consumer, group), [][]string{words},
		func(q *Queue) { q.ReadHistory(group, consumer, 10) })
}

// addEntry is a plain XADD with fields that no bridge writes.
func (r *run) addEntry() {
	f := pick(r, "fields", fields{"note": "no ID", "bytes": "\xff"}, fields{"id": "f", "attempt": "x"},
		fields{"id": "f", "max_attempts": "0"},
		fields{"id": "f", "retry_for_ms": "0", "first_due_ms": "1"}, fields{"id": "f", "retry_for_ms": "5", "due_ms": "never"},
		fields{"id": "f", "snoozes": "999", "crashes": "1"}, fields{"id": "f", "snoozes": "1000", "crashes": "x", "max_crashes": "0"},
		fields{"id": "", "payload": "p"}, fields{"id": "f", "for": "g1", "reason": "none"}, fields{"id": "f", "for": ""})
	words := []string{"XADD", r.k.Stream, "*"}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		words = append(words, name, f[name])
	}
	r.plain(fmt.Sprintf("%q", words), [][]string{words},
		func(q *Queue) { q.Stream = append(q.Stream, Entry{next(&q.NewEntries), f}) })
}
