package planner

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	maxSearchPause = 5 * time.Minute
	walkEntries    = 1000                   // entries in one step of a walk
	maxWalk        = time.Second            // for all walks of a pass; each recurrence makes at least one step
	walkPause      = 100 * time.Millisecond // before a walk that did not end is continued
)

// search is the search of a recurrence with overlap skip for unfinished messages of its plan.
type search struct {
	pause time.Duration // the last pause between two searches; it grows while messages are unfinished
	// notBefore is the earliest time of the next search, unless an occurrence is due before it. Zero = search at once.
	notBefore time.Time
	walk      lua.Unfinished
	began     time.Time // the server's time when the current walk began; zero = there is no walk
}

// applyOverlapSkip applies overlap skip to a decision: it plans one occurrence as soon as no message of the plan is
// unfinished, and leaves out occurrences that are due before that. It returns the zero value if there is nothing to do
// yet. walkStart is the time when the walk began, and the time for which d was made.
func (q *Queue) applyOverlapSkip(ctx context.Context, it *item, d decision,
	walkStart, now time.Time) (decision, error) {
	var lastDue, next lua.Occurrence
	for _, o := range d.occurrences {
		if !o.At.After(walkStart) {
			lastDue = o
		} else if next.At.IsZero() {
			next = o
		}
	}
	if lastDue.At.IsZero() && it.search.notBefore.After(now) {
		it.idleUntil = earlier(next.At, it.search.notBefore)
		return decision{}, nil
	}
	unfinished, done, err := q.isUnfinished(ctx, it)
	if err != nil {
		return decision{}, err
	}
	if !done {
		it.search.began, it.idleUntil = walkStart, now.Add(walkPause)
		return decision{}, nil
	}
	it.search.began = time.Time{}
	switch {
	case !unfinished: // plan the last occurrence that is due, or else the next one
		one := lastDue
		if one.At.IsZero() {
			one = next
		}
		d.occurrences, d.upTo = []lua.Occurrence{one}, one.At
		return d, nil
	case !lastDue.At.IsZero(): // a message is unfinished, and occurrences are due: leave the occurrences out
		it.search.notBefore = now.Add(Interval)
		d.occurrences, d.upTo = nil, lastDue.At
		return d, nil
	}
	// A message is unfinished, and no occurrence is due: search again after a longer pause.
	it.search.pause = min(maxSearchPause, max(Interval, 2*it.search.pause))
	it.search.notBefore = now.Add(it.search.pause)
	it.idleUntil = earlier(next.At, it.search.notBefore)
	return decision{}, nil
}

// isUnfinished reports whether any message of the plan is unfinished. It walks through the entries in bounded steps,
// and reads each entry once. It finds scheduled messages by their IDs. done is false if the time for the walks of this
// pass has passed. Then the next call continues the walk.
func (q *Queue) isUnfinished(ctx context.Context, it *item) (unfinished, done bool, err error) {
	ids := make([]string, len(it.plan.Recent))
	for i, part := range it.plan.Recent {
		ids[i] = it.name + "@" + part
	}
	if len(ids) == 0 {
		return false, true, nil
	}
	for {
		step, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		unfinished, done, err := lua.FindUnfinished(step, q.planner.client, q.keys, &it.search.walk, walkEntries, ids)
		cancel()
		if done || err != nil || time.Now().After(q.walkEnd) {
			return unfinished, done, err
		}
	}
}
