package model

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// oldBridge is the heartbeat of a bridge of the previous release, which does not state a protocol level.
const oldBridge = "01J0000000000000000000000A host 1 v0.1.0"

// refusedForOldBridge is the verdict on a message that needs more than a running bridge supports.
const refusedForOldBridge = lua.Verdict(-7)

// beat renews the heartbeat of the bridge of the previous release, if there is one.
func (w *whole) beat(ctx context.Context) {
	if w.old {
		now := w.parts[0].time(w.redis.Client.Do(ctx, w.redis.Client.B().Time().Build()))
		w.zadd(ctx, decimal(now))
	}
}

func (w *whole) zadd(ctx context.Context, score string) {
	if err := w.parts[0].commands(ctx, [][]string{{"ZADD", lua.NewGlobals(w.prefix).Bridges, score, oldBridge}}); err != nil {
		w.parts[0].refuse("%v", err)
	}
}

// changeBridge starts or stops a bridge of the previous release. Clients that are created afterwards know of it.
func (w *whole) changeBridge() {
	w.unless(!w.old && !seldom(w.parts[0], "old bridge"))
	w.setBridge(!w.old)
}

func (w *whole) setBridge(old bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	w.old = old
	if !old {
		bridges := lua.NewGlobals(w.prefix).Bridges
		if err := w.parts[0].commands(ctx, [][]string{{"ZREM", bridges, oldBridge}}); err != nil {
			w.parts[0].refuse("%v", err)
		}
	}
	w.beat(ctx)
	w.connect()
}

// former runs a script of the previous release with the arguments that that release passes.
func (w *whole) former(ctx context.Context, c rueidis.Client, name string, keys []string, texts ...string) ([]string, error) {
	reply, err := c.Do(ctx, c.B().Eval().Script(w.scripts[name]).Numkeys(int64(len(keys))).Key(keys...).Arg(texts...).Build()).
		ToArray()
	if err != nil {
		return nil, fmt.Errorf("%s of the release before: %w", name, err)
	}
	var answers []string
	for _, one := range reply {
		if n, err := one.AsInt64(); err == nil {
			answers = append(answers, decimal(n))
		} else {
			text, _ := one.ToString()
			answers = append(answers, cmp.Or(strings.TrimSuffix(text, "-0"), "0")) // cursors: 0 ends a sweep
		}
	}
	return answers, nil
}

// formerKeys returns the keys that the previous release passes to its scripts.
func formerKeys(k lua.Keys, script string) []string {
	return map[string][]string{
		"drain":      {k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Turns, k.Policy, k.Rate, k.History},
		"reclaim":    {k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Calm, k.Turns, k.Policy, k.History},
		"trim":       {k.Stream, k.Seen, k.Turns},
		"pass_turns": {k.Stream, k.Due, k.Meta, k.Wake, k.Turns},
		"ack":        {k.Stream, k.Due, k.Wake, k.Turns, k.Policy, k.History},
		"retry":      {k.Stream, k.Due, k.Payload, k.Meta, k.Dead, k.Wake, k.Turns, k.Policy, k.History},
		"enqueue":    {k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy, k.History},
		"reschedule": {k.Due, k.Wake, k.Policy, k.History},
		"cancel":     {k.Due, k.Payload, k.Meta, k.Seen, k.Policy, k.History},
	}[script]
}

// formerly runs one transition by the previous release on one partition.
func (w *whole) formerly(r *run, what, name string, args []string, told int,
	spec func(q *Queue, got []string) []int) []string {
	return step(r, what+" (the release before)", func(ctx context.Context) ([]string, error) {
		got, err := w.former(ctx, r.c, name, formerKeys(r.k, name), args...)
		if err == nil && len(got) > told {
			got = got[:told]
		}
		return got, err
	}, func(q *Queue, got []string) []string {
		q.Former = true
		var want []string
		for _, n := range spec(q, got) {
			want = append(want, strconv.Itoa(n))
		}
		q.Former = false
		return want
	})
}

// byFormerBridge does to a partition what a bridge of the previous release does.
func (w *whole) byFormerBridge(r *run) {
	switch what := pick(r, "what", "drain", "drain", "reclaim", "trim", "pass turns"); what {
	case "drain":
		r.unless(len(r.q.Scheduled) == 0)
		before := r.seen.newest
		w.formerly(r, what, "drain", []string{"100", "1048576", "bridge"}, 2, func(q *Queue, _ []string) []int {
			d := q.Drain(100, plenty)
			return []int{d.Moved, d.Dead}
		})
		r.inOrder(before)
	case "reclaim":
		group := r.group(holds)
		for _, p := range r.q.Groups[group].Pending {
			r.unless(p.cancelled()) // the old script reads the mark as deliveries: see protocol.md, section 8
		}
		most, delays := former(wholePolicy)
		w.formerly(r, what+" of "+group, "reclaim", []string{group, most, delays,
			lua.ReclaimConsumer, decimal(idleTime.Milliseconds()), "0-0", "100", "1048576",
			"0", "bridge"}, 4, func(q *Queue, _ []string) []int {
			got := q.Reclaim(lua.ReclaimArgs{Group: group, Attempts: wholePolicy, MinIdle: idleTime, Limit: 100,
				MaxBytes: plenty}, "")
			return []int{0, got.Retried, got.Dead, got.Skipped}
		})
	case "trim":
		r.unless(len(r.q.Stream) == 0)
		w.formerly(r, what, "trim", []string{"0-0", "1000", "1048576"}, 1,
			func(q *Queue, got []string) []int {
				return []int{q.Trim("", 1000, plenty, lua.Trimmed{Freed: int(atoi(got[0]))}).Freed}
			})
	case "pass turns":
		r.unless(len(r.q.Turns) == 0)
		w.formerly(r, what, "pass_turns", []string{"", "0", "100"}, 4,
			func(q *Queue, _ []string) []int {
				t := q.PassTurns(lua.TurnsPassed{}, 100)
				return []int{0, t.Rank, t.Freed, t.Moved}
			})
	}
}

// former returns a policy in the form that the old scripts take.
func former(a lua.Attempts) (most, delays string) {
	var all []string
	for _, d := range a.Delays {
		all = append(all, decimal(d.Milliseconds()))
	}
	return strconv.Itoa(a.Max), strings.Join(all, ",")
}

// byFormerWorker does what a worker of the previous release does with the entries that it holds.
func (w *whole) byFormerWorker(r *run) {
	group := r.group(holds)
	pending := r.pending(group)
	entry := pending[pick(r, "entry", indices(pending)...)]
	id := ""
	if e := r.q.entry(entry); e != nil {
		id = e.messageID()
	}
	action := pick(r, "action", "ack", "retry", "release", "dead")
	r.unless(action != "ack" && r.q.entry(entry) == nil) // exports write its letter, without a body, in another form
	if action == "ack" {
		before := r.q
		held := lua.Held{Entry: entry, ID: id, Key: r.toldKey(entry)}
		args := []string{group, entry, lua.Separator + held.Key + lua.Separator + id, "worker"}
		w.formerly(r, "ack of "+entry+" of "+group, "ack", args, 1, func(q *Queue, _ []string) []int {
			q.Ack(group, []lua.Held{held})
			return []int{1}
		})
		r.book.done(group, before.entry(entry), entry)
		return
	}
	most, delays := former(wholePolicy)
	failure := lua.Failure{Held: lua.Held{Entry: entry, ID: id}, Action: lua.Action(action), Delay: -1, Error: "no",
		Reason: lua.ReasonMaxAttempts}
	w.formerly(r, action+" of "+entry+" of "+group, "retry",
		[]string{group, most, delays, entry, id, action, "", failure.Reason, failure.Error, "worker"}, 1,
		func(q *Queue, _ []string) []int {
			return []int{int(q.Retry(group, wholePolicy, []lua.Failure{failure})[0])}
		})
}

// byFormerClient does with an ID what a client of the previous release does. That client looks in the partition of
// the ID or of the key, and in others only if nothing is there. So the test does not use IDs that are in other
// partitions.
func (w *whole) byFormerClient() {
	id, p := w.id(), w.parts[0]
	var in []*run
	for _, part := range w.parts {
		_, scheduled := part.q.Scheduled[id]
		if scheduled || part.q.Windows[id] > 0 {
			in = append(in, part)
		}
	}
	what := pick(p, "what", "enqueue", "enqueue", "cancel", "reschedule")
	if what != "enqueue" {
		w.unless(len(in) != 1)
		in[0].last = w.last()
		w.changeFormerly(in[0], what, id)
		return
	}
	key := pick(p, "key", wholeKeys...)
	part := w.parts[(&Whole{Counts: w.counts}).of(id, key)]
	w.unless(slices.ContainsFunc(in, func(one *run) bool { return one != part }))
	part.last = w.last()
	item := lua.Item{ID: id, When: lua.At(w.when()), Payload: p.payload(), Dedup: pick(p, "dedup", lua.Refuse, lua.Replace)}
	if key != "" {
		item.Meta = lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: key})
	}
	old := part.q.Scheduled[id]
	args := []string{"", "", "0", id, string(item.When), string(item.Payload), item.Meta, string(item.Dedup), "client"}
	got := w.formerly(part, fmt.Sprintf("enqueue %v", showItems([]lua.Item{item})), "enqueue", args, 1,
		func(q *Queue, _ []string) []int {
			return []int{int(q.Enqueue(lua.Token{}, []lua.Item{item})[0].Verdict)}
		})
	if got[0] != "0" {
		w.book.withdraw(old)
		w.book.accept(item.Payload)
	}
}

func (w *whole) changeFormerly(r *run, what, id string) {
	to := lua.At(w.when())
	old, scheduled := r.q.Scheduled[id]
	if what == "reschedule" {
		w.formerly(r, "reschedule "+id, "reschedule", []string{id, string(to), "client"},
			1, func(q *Queue, _ []string) []int {
				if _, moved := q.Reschedule(id, to); moved {
					return []int{1}
				}
				return []int{0}
			})
		return
	}
	w.formerly(r, "cancel "+id, "cancel", []string{id, "client"}, 1,
		func(q *Queue, _ []string) []int {
			if q.Cancel([]string{id})[0] {
				return []int{1}
			}
			return []int{0}
		})
	if scheduled {
		w.book.withdraw(old)
	}
}
