package planner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

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

// decision is the next step for a recurrence: the occurrences to plan now, in order, and the time up to which
// everything is planned afterwards. Without occurrences, idleUntil is the time until which there is nothing to plan.
type decision struct {
	occurrences []time.Time
	upTo        time.Time
	idleUntil   time.Time
	spans       []lua.Span // the last one is open: it will end at upTo
	anew        bool       // the clock was set back: planning continues from now
}

// farAway is later than any occurrence.
var farAway = time.UnixMilli(1e14)

// decide returns the occurrences to plan: missed ones as far as the spec wants them, all that are due within Ahead, and
// at least the next one. Occurrences that were planned already, by whatever clock, are not planned again.
func decide(s *recurrence.Schedule, plan lua.Plan, now time.Time) decision {
	left := lua.MaxPlanned
	if s.Count > 0 {
		if left = min(left, s.Count-plan.Used); left <= 0 {
			return decision{idleUntil: farAway}
		}
	}
	d := decision{spans: slices.Clone(plan.Spans)}
	if d.anew = isAhead(s, d.last(), now); d.anew {
		d.spans = append(d.spans, lua.Span{From: now, To: now})
	}
	known := knownOf(plan)
	from, cut := d.last().To, now.Add(-recurrence.MissedAfter)
	if from.Before(cut) {
		following, _ := d.next(s, from, known)
		d.occurrences, from = missed(s, from, cut, left), cut
		d.occurrences = slices.DeleteFunc(d.occurrences, func(at time.Time) bool {
			return known[at.UnixMilli()] || d.former(at) >= 0
		})
		if first := append(slices.Clone(d.occurrences), cut)[0]; following.Before(first) { // some are left out for good
			d.spans = append(d.spans, lua.Span{From: first.Add(-time.Millisecond), To: first})
		}
	}
	coming := d.latest(plan)
	for ahead := coming.After(now); len(d.occurrences) < left; {
		next, ok := d.next(s, from, known)
		if !ok {
			break
		}
		if ahead && next.After(now.Add(Ahead)) {
			break
		}
		d.occurrences, from, ahead = append(d.occurrences, next), next, ahead || next.After(now)
	}
	if len(d.occurrences) > 0 {
		d.upTo = d.occurrences[len(d.occurrences)-1]
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
	justified := now.Add(Ahead)
	if next, ok := s.Next(now); ok && next.After(justified) {
		justified = next
	}
	return last.To.After(justified) && last.From.After(now)
}

// knownOf returns the occurrences in plan.Recent: some of them left the schedule before their time.
func knownOf(plan lua.Plan) map[int64]bool {
	known := map[int64]bool{}
	for _, part := range plan.Recent {
		if !strings.HasSuffix(part, lua.RunSuffix) {
			known[occurrenceOf(part).UnixMilli()] = true
		}
	}
	return known
}

// former returns the index of the span, before the last one, that holds an occurrence; negative = none does.
func (d decision) former(at time.Time) int {
	return slices.IndexFunc(d.spans[:len(d.spans)-1], func(span lua.Span) bool {
		return at.After(span.From) && !at.After(span.To)
	})
}

// next returns the first occurrence after a point in time that was not planned yet.
func (d decision) next(s *recurrence.Schedule, after time.Time, known map[int64]bool) (time.Time, bool) {
	for {
		next, ok := s.Next(after)
		if !ok {
			return next, false
		}
		switch i := d.former(next); {
		case i >= 0:
			after = d.spans[i].To
		case known[next.UnixMilli()]:
			after = next
		default:
			return next, true
		}
	}
}

// through returns the spans planned after this step, without former spans that lie within the last one.
func (d decision) through() []lua.Span {
	last := d.last()
	last.To = d.upTo
	last.From = earlier(last.From, last.To)
	former := slices.DeleteFunc(slices.Clone(d.spans[:len(d.spans)-1]), func(span lua.Span) bool {
		return !span.From.Before(last.From) && !span.To.After(last.To)
	})
	return append(former, last)
}

// latest returns the latest occurrence of plan.Recent that lies in the last span.
func (d decision) latest(plan lua.Plan) (latest time.Time) {
	for _, part := range plan.Recent {
		at := occurrenceOf(part)
		if at.After(latest) && at.After(d.last().From) && !at.After(d.last().To) && !strings.HasSuffix(part, lua.RunSuffix) {
			latest = at
		}
	}
	return latest
}

// missed returns the occurrences in (from, until] that are made up for.
func missed(s *recurrence.Schedule, from, until time.Time, most int) (all []time.Time) {
	switch s.Missed {
	case recurrence.MissedSkip:
		return nil
	case recurrence.MissedOnce:
		most = 1
	default:
		most = min(most, recurrence.MissedLimit)
	}
	for len(all) < most {
		last, ok := s.LastUntil(from, until)
		if !ok {
			break
		}
		all, until = append(all, last), last.Add(-time.Millisecond)
	}
	slices.Reverse(all)
	return all
}
