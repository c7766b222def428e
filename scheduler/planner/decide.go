package planner

import (
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/recurrence"
)

// decision is what is to be planned of a recurrence now, in order, and up to where all is planned then; or, without occurrences,
// until when there is nothing to plan.
type decision struct {
	occurrences []time.Time
	upTo        time.Time
	idleUntil   time.Time
}

// farAway is later than any occurrence.
var farAway = time.UnixMilli(1e14)

// decide says what is to be planned: of the missed occurrences what the spec wants, all that is due within Ahead, and at least
// the next one.
func decide(s *recurrence.Schedule, plan lua.Plan, now time.Time) decision {
	left := lua.MaxPlanned
	if s.Count > 0 {
		if left = min(left, s.Count-plan.Used); left <= 0 {
			return decision{idleUntil: farAway}
		}
	}
	var all []time.Time
	from, cut := plan.Planned, now.Add(-recurrence.MissedAfter)
	if from.Before(cut) {
		all, from = missed(s, from, cut, left), cut
	}
	coming := latestOf(plan)
	for ahead := coming.After(now); len(all) < left; {
		next, ok := s.Next(from)
		if !ok {
			break
		}
		if ahead && next.After(now.Add(Ahead)) {
			break
		}
		all, from, ahead = append(all, next), next, ahead || next.After(now)
	}
	if len(all) > 0 {
		return decision{occurrences: all, upTo: all[len(all)-1]}
	}
	next, ok := s.Next(from)
	if !ok {
		return decision{idleUntil: farAway}
	}
	return decision{idleUntil: earlier(coming, next.Add(-Ahead))}
}

// latestOf is the latest occurrence that is remembered.
func latestOf(plan lua.Plan) (latest time.Time) {
	for _, part := range plan.Recent {
		if at := occurrenceOf(part); at.After(latest) && !strings.HasSuffix(part, lua.RunSuffix) {
			latest = at
		}
	}
	return latest
}

// missed returns those of (from, until] that are made up for.
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
