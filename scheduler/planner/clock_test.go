package planner

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// Regression: a clock that was an hour ahead planned an occurrence an hour ahead. When the clock was set back, the
// recurrence stopped until that time.
func TestAClockThatWasAheadStopsNoRecurrence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(recurrence.Spec{Every: time.Second})
	b.Do("DEL", b.Keys.Due, b.Keys.Payload)
	now := b.serverTime().Truncate(time.Second)
	p, ahead := b.storedPlan(), now.Add(time.Hour)
	p.Recent = []string{fmt.Sprint(ahead.Add(time.Second).UnixMilli())}
	p.Spans = []lua.Span{{From: now.Add(-time.Minute), To: now.Add(2 * time.Second)}, {From: ahead, To: ahead.Add(time.Minute)}}
	b.Do("HSET", b.Keys.Planned, "r", p.String())
	b.Do("HINCRBY", b.Keys.Planned, "", "1")
	q := b.freshQueue()
	for range 3 {
		b.pass(q)
	}
	ids := b.scheduled()
	if len(ids) < 10 || ids[0] != fmt.Sprint("r@", now.Add(3*time.Second).UnixMilli()) {
		t.Errorf("planned: %v", ids) // must not begin with those planned before the clock was ahead
	}
	redistest.Want(t, "log lines", strings.Count(b.log.String(), "goes on from now"), 1)
	if now := b.storedPlan(); len(now.Spans) != 3 {
		t.Errorf("stored plan: %s", now)
	}
}

// If the clock is set back between passes, recurrences that were idle until a later time must be examined again.
func TestAPassSeesThatTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(recurrence.Spec{Every: time.Second})
	q := b.freshQueue()
	b.pass(q)
	for _, it := range q.items {
		it.idleUntil = farAway
	}
	q.now = b.serverTime().Add(time.Hour)
	b.pass(q)
	if until := q.items["r"].idleUntil; until.After(b.serverTime().Add(time.Minute)) {
		t.Errorf("idle until %s", until)
	}
}

// A clock goes on by chance, and up to four times is set forward or back by up to an hour. No occurrence may be planned
// twice, and the next occurrence must always be planned.
func TestNoClockPlansTwiceNorStops(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, err := recurrence.Spec{Name: "r", Queue: "q", Every: time.Duration(1+r.IntN(90)) * time.Second,
			Missed: []recurrence.Missed{recurrence.MissedOnce, recurrence.MissedSkip, recurrence.MissedAll}[r.IntN(3)]}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		now := time.UnixMilli(1_800_000_000_000)
		plan, planned, jumps := lua.Plan{Spans: []lua.Span{{From: now, To: now}}}, map[int64]bool{}, 0
		for range 400 {
			switch r.IntN(20) {
			case 0:
				if jumps++; jumps < 5 {
					now = now.Add(time.Duration(r.IntN(7200)-3600) * time.Second)
				}
			default:
				now = now.Add(time.Duration(r.IntN(15000)) * time.Millisecond)
			}
			for more := true; more; {
				d := decide(s, plan, now)
				more = len(d.occurrences) > 0
				if more {
					plan.Spans = d.plannedSpans()
				}
				for _, o := range d.occurrences {
					at := o.At
					if planned[at.UnixMilli()] {
						t.Fatalf("seed %d, %s every %s: %s twice, of %v", seed, s.Missed, s.Every, at, plan.Spans)
					}
					planned[at.UnixMilli()] = true
					plan.Recent = append(plan.Recent, fmt.Sprint(at.UnixMilli()))
				}
				plan.Recent = plan.Recent[max(0, len(plan.Recent)-5):]
			}
			if next, _ := s.Next(now); !planned[next.UnixMilli()] {
				t.Fatalf("seed %d, %s every %s: the next one of %s is not planned, of %v", seed, s.Missed, s.Every, now, plan.Spans)
			}
		}
	}
}
