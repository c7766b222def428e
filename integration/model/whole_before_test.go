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

// oldBridge is the heartbeat of a bridge of the release before, which says no protocol level.
const oldBridge = "01J0000000000000000000000A host 1 v0.1.0"

// refusedForOldBridge is the verdict on what a living bridge does not serve.
const refusedForOldBridge = lua.Verdict(-7)

// beat has the bridge of the release before live on, if there is one.
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

// changeBridge has a bridge of the release before come, or go. Clients that begin then know of it.
func (w *whole) changeBridge() {
	w.unless(!w.old && !seldom(w.parts[0], "old bridge"))
	w.setBridge(!w.old)
}

func (w *whole) setBridge(old bool) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if w.old = old; !old {
		bridges := lua.NewGlobals(w.prefix).Bridges
		if err := w.parts[0].commands(ctx, [][]string{{"ZREM", bridges, oldBridge}}); err != nil {
			w.parts[0].refuse("%v", err)
		}
	}
	w.beat(ctx)
	w.connect()
}

// former runs a script of the release before, which is given what that release gave it.
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
			answers = append(answers, cmp.Or(strings.TrimSuffix(text, "-0"), "0")) // of cursors: came round
		}
	}
	return answers, nil
}

// formerKeys are those that the release before gives its scripts.
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

// formerly runs one transition by the release before, on one partition.
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

// byFormerBridge is what a bridge of the release before does to a partition.
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
			r.unless(p.cancelled()) // it takes the mark for deliveries: see PROTOCOL, section 8
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

// former is a policy as scripts take it.
func former(a lua.Attempts) (most, delays string) {
	var all []string
	for _, d := range a.Delays {
		all = append(all, decimal(d.Milliseconds()))
	}
	return strconv.Itoa(a.Max), strings.Join(all, ",")
}

// byFormerWorker is what a worker of the release before does with what it holds.
func (w *whole) byFormerWorker(r *run) {
	group := r.group(holds)
	pending := r.pending(group)
	entry := pending[pick(r, "entry", indices(pending)...)]
	id := ""
	if e := r.q.entry(entry); e != nil {
		id = e.messageID()
	}
	action := pick(r, "action", "ack", "retry", "release", "dead")
	r.unless(action != "ack" && r.q.entry(entry) == nil) // its letter has no body: an export tells that in a form of its own
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

// byFormerClient is what a client of the release before does with an ID. It knows the partition of the ID, or of the
// key, and looks in others only for what is not there; so IDs that others hold are left alone.
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
