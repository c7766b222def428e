package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// decision is the next step for a recurrence: either occurrences to plan now, or a time until which to plan nothing.
type decision struct {
	occurrences  []lua.Occurrence // in order; Taken is not set yet
	upTo         time.Time        // after this step, all occurrences until this time are planned
	idleUntil    time.Time        // only set without occurrences: there is nothing to plan before this time
	spans        []lua.Span       // the spans that the plan covers; the last one will end at upTo
	clockSetBack bool             // the clock was set back, so planning continues from now
}

// farAway is later than any occurrence.
var farAway = time.UnixMilli(1e14)

// decide returns the occurrences to plan: the missed ones that the spec makes up for, all that are due within Ahead,
// and at least the next one. It does not plan an occurrence again that was planned before, even if the clock was set
// back since.
func decide(s *recurrence.Schedule, plan lua.Plan, now time.Time) decision {
	left := lua.MaxPlanned
	if s.Count > 0 {
		if left = min(left, s.Count-plan.Used); left <= 0 {
			return decision{idleUntil: farAway}
		}
	}
	d := decision{spans: slices.Clone(plan.Spans)}
	if d.clockSetBack = isAhead(s, d.last(), now); d.clockSetBack {
		d.spans = append(d.spans, lua.Span{From: now, To: now})
	}
	known := recentTimes(plan)
	var times []time.Time
	from, missedUntil := d.last().To, now.Add(-recurrence.MissedAfter)
	if from.Before(missedUntil) {
		firstMissed, _ := d.next(s, from, known)
		times, from = missed(s, from, missedUntil, left), missedUntil
		times = slices.DeleteFunc(times, func(at time.Time) bool {
			return known[at.UnixMilli()] || d.formerSpanOf(at) >= 0
		})
		first := missedUntil
		if len(times) > 0 {
			first = times[0]
		}
		if firstMissed.Before(first) { // missed occurrences are left out: a new span begins after them
			d.spans = append(d.spans, lua.Span{From: first.Add(-time.Millisecond), To: first})
		}
	}
	coming := d.latestRecent(plan)
	// Plan at least one occurrence after now, and all that are due within Ahead.
	for hasNext := coming.After(now); len(times) < left; {
		next, ok := d.next(s, from, known)
		if !ok {
			break
		}
		if hasNext && next.After(now.Add(Ahead)) {
			break
		}
		times, from, hasNext = append(times, next), next, hasNext || next.After(now)
	}
	for _, at := range times {
		d.occurrences = append(d.occurrences, lua.Occurrence{At: at, Due: s.Due(at)})
		d.upTo = at
	}
	if len(times) > 0 {
		return d
	}
	next, ok := d.next(s, from, known)
	if !ok {
		return decision{idleUntil: farAway}
	}
	return decision{idleUntil: earlier(coming, next.Add(-Ahead))}
}

func (d decision) last() lua.Span { return d.spans[len(d.spans)-1] }

// isAhead reports whether the plan was made by a clock that ran ahead of the current one, so that it left out
// occurrences that are still to come.
func isAhead(s *recurrence.Schedule, last lua.Span, now time.Time) bool {
	farthest := now.Add(Ahead) // a plan made by the current clock does not reach further
	if next, ok := s.Next(now); ok && next.After(farthest) {
		farthest = next
	}
	return last.To.After(farthest) && last.From.After(now)
}

// recentTimes returns the times of the occurrences in plan.Recent, in Unix ms. They must not be planned again, although
// some of them may have left the schedule before their time.
func recentTimes(plan lua.Plan) map[int64]bool {
	known := map[int64]bool{}
	for _, part := range plan.Recent {
		if !strings.HasSuffix(part, lua.RunSuffix) {
			known[occurrenceOf(part).UnixMilli()] = true
		}
	}
	return known
}

// next returns the first occurrence after a point in time that was not planned yet.
func (d decision) next(s *recurrence.Schedule, after time.Time, known map[int64]bool) (time.Time, bool) {
	for {
		next, ok := s.Next(after)
		if !ok {
			return next, false
		}
		switch i := d.formerSpanOf(next); {
		case i >= 0:
			after = d.spans[i].To
		case known[next.UnixMilli()]:
			after = next
		default:
			return next, true
		}
	}
}

// formerSpanOf returns the index of the span, before the last one, that holds an occurrence. It returns -1 if none
// does.
func (d decision) formerSpanOf(at time.Time) int {
	return slices.IndexFunc(d.spans[:len(d.spans)-1], func(span lua.Span) bool {
		return at.After(span.From) && !at.After(span.To)
	})
}

// missed returns the occurrences in (from, until] that the spec makes up for.
func missed(s *recurrence.Schedule, from, until time.Time, limit int) (all []time.Time) {
	switch s.Missed {
	case recurrence.MissedSkip:
		return nil
	case recurrence.MissedOnce:
		limit = 1
	default:
		limit = min(limit, recurrence.MissedLimit)
	}
	for len(all) < limit {
		last, ok := s.LastUntil(from, until)
		if !ok {
			break
		}
		all, until = append(all, last), last.Add(-time.Millisecond)
	}
	slices.Reverse(all)
	return all
}

// latestRecent returns the latest occurrence of plan.Recent that lies in the last span.
func (d decision) latestRecent(plan lua.Plan) (latest time.Time) {
	for _, part := range plan.Recent {
		at := occurrenceOf(part)
		inLast := at.After(d.last().From) && !at.After(d.last().To)
		if inLast && at.After(latest) && !strings.HasSuffix(part, lua.RunSuffix) {
			latest = at
		}
	}
	return latest
}

// plannedSpans returns the spans that the plan covers after this step. It leaves out former spans within the last one.
func (d decision) plannedSpans() []lua.Span {
	last := d.last()
	last.To = d.upTo
	last.From = earlier(last.From, last.To)
	former := slices.DeleteFunc(slices.Clone(d.spans[:len(d.spans)-1]), func(span lua.Span) bool {
		return !span.From.Before(last.From) && !span.To.After(last.To)
	})
	return append(former, last)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// timesOf returns a hash of the settings that decide the times of occurrences. Changes of other settings leave it
// unchanged.
func timesOf(s recurrence.Spec) string {
	if s.Paused {
		return "paused"
	}
	s = s.WithDefaults()
	return lua.SpecVersion(fmt.Sprintf("%q %q %d %d %d %d %d", s.Cron, s.Zone, s.Every, s.Phase, s.Start.UnixMilli(),
		s.End.UnixMilli(), s.Count))[:16]
}
