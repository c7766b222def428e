package model

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

var (
	recurrences = []string{"r1", "r 2/ü"}
	specs       = []string{`{"every_ms":1000}`, `{"cron":"@daily"}`}
)

func (r *run) recur() {
	name, spec := pick(r, "recurrence", recurrences...), pick(r, "spec", specs...)
	before, paused := pick(r, "before", "", "", specs[0]), pick(r, "paused", false, false, true)
	times := pick(r, "times", "t1", "t1", "t2")
	step(r, fmt.Sprintf("recur %q %s of %s before %s, paused %v", name, spec, times, before, paused),
		func(ctx context.Context) (lua.Recurred, error) {
			return lua.Recur(ctx, r.c, r.k, name, before, spec, times, paused)
		}, func(q *Queue, _ lua.Recurred) lua.Recurred { return q.Recur(name, before, spec, times, paused) })
}

// planned is the answer to a plan call.
type planned struct {
	OK   bool
	Plan string
}

func (r *run) plan() {
	r.unless(len(r.q.Recurrences) == 0)
	name := pick(r, "recurrence", slices.Sorted(maps.Keys(r.q.Recurrences))...)
	before := r.q.Recurrences[name].plan()
	r.unless(before == "")
	if seldom(r, "stale") {
		before = lua.SpecVersion("another") + " t 5-5 0 "
	}
	spans := slices.Clone(r.q.Recurrences[name].Spans)
	if seldom(r, "another span") {
		spans = append(spans[max(0, len(spans)-3):], lua.Span{From: r.at(-2 * time.Hour)})
	}
	var all []lua.Occurrence
	at := r.at(pick(r, "at", time.Hour, -time.Hour, 3*time.Hour))
	for range pick(r, "occurrences", 1, 2, 0) {
		*r.serials++
		at = at.Add(time.Duration(*r.serials) * time.Second)
		for slices.Contains(r.q.Recurrences[name].Recent, decimal(at.UnixMilli())) { // no planner repeats a time
			at = at.Add(time.Millisecond)
		}
		all = append(all, lua.Occurrence{At: at, Due: at.Add(pick(r, "jitter", 0, time.Minute))})
	}
	spans[len(spans)-1].To = at
	payload, meta := pick(r, "body", "", ":body"), pick(r, "headers", "", `{"h:a":"b"}`, `{"overlap":"skip"}`)
	step(r, fmt.Sprintf("plan %q of %v after %q", name, all, before), func(ctx context.Context) (planned, error) {
		ok, plan, err := lua.PlanOccurrences(ctx, r.c, r.k, name, before, spans, []byte(payload), meta, all)
		return planned{ok, plan}, err
	}, func(q *Queue, _ planned) planned {
		ok, plan := q.Plan(name, before, spans, payload, meta, all)
		return planned{ok, plan}
	})
}

// ran is the answer to a run by hand.
type ran struct {
	ID  string
	Due int64
	OK  bool
}

func (r *run) runByHand() {
	name, alone := pick(r, "recurrence", recurrences...), pick(r, "alone", false, true)
	step(r, fmt.Sprintf("run %q, alone %v", name, alone), func(ctx context.Context) (ran, error) {
		id, due, ok, err := lua.RunRecurrence(ctx, r.c, r.k, name, []byte(":run"), "", alone)
		return ran{id, due.UnixMilli(), ok}, err
	}, func(q *Queue, _ ran) ran {
		id, due, ok := q.Run(name, ":run", "", alone)
		return ran{id, due.UnixMilli(), ok}
	})
}

// removed is the answer to a removal.
type removed struct {
	Removed bool
	Back    int
}

func (r *run) removeRecurrence() {
	r.unless(len(r.q.Recurrences) == 0)
	name := pick(r, "recurrence", recurrences...)
	step(r, fmt.Sprintf("remove %q", name), func(ctx context.Context) (removed, error) {
		was, back, err := lua.RemoveRecurrence(ctx, r.c, r.k, name, false)
		return removed{was, back}, err
	}, func(q *Queue, _ removed) removed {
		was, back := q.RemoveRecurrence(name)
		return removed{was, back}
	})
}

// readRecurrences parses what is stored about recurrences. It reports text that it cannot parse as damage.
func (s *stored) readRecurrences(recurring, plans map[string]string) {
	for name, spec := range recurring {
		s.Recurrences[name] = Recurrence{Spec: spec}
	}
	for name, text := range plans {
		if name == "" { // this field counts changes
			continue
		}
		p, ok := lua.ParsePlan(text)
		if !ok {
			s.damage += fmt.Sprintf("what is remembered of %q is %q\n", name, text)
		}
		r := s.Recurrences[name]
		r.Version, r.Times, r.Spans, r.Used, r.Recent = p.Version, p.Times, p.Spans, p.Used, p.Recent
		s.Recurrences[name] = r
	}
}

func askRecurrences(c rueidis.Client, k lua.Keys) []rueidis.Completed {
	return []rueidis.Completed{c.B().Hgetall().Key(k.Recurring).Build(), c.B().Hgetall().Key(k.Planned).Build()}
}
