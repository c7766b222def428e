package scheduler

import (
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// seriesOf returns the series to which the drains of a partition are reported; nil without an observer.
func (s *Scheduler) seriesOf(partition string) observe.Series {
	if s.cfg.Observer == nil {
		return nil
	}
	queue, _, _ := lua.SplitPartition(partition)
	return s.cfg.Observer.Series(observe.Bridge, queue, "")
}

// tellDrained reports a drain to the observer. Each message counts as late as the oldest one.
func tellDrained(tell observe.Series, drained lua.Drained) {
	if tell == nil {
		return
	}
	if drained.Moved > 0 {
		tell.AddTimed(observe.Drained, drained.Moved, drained.Late)
	}
	if drained.Dead > 0 {
		tell.Add(observe.DeadDrained, drained.Dead)
	}
}

// limitedSince is the time of the last drain, if the ready limit held messages back then; else zero.
type limitedSince struct{ at time.Time }

// leaveOut removes from the lateness of a drain the time for which a ready limit held the messages, as far as this loop
// saw it. The remainder begins at the last drain.
func (l *limitedSince) leaveOut(drained *lua.Drained, began time.Time) {
	limited := drained.Held == lua.HeldByReadyLimit
	switch {
	case !l.at.IsZero():
		drained.Late = min(drained.Late, began.Sub(l.at).Truncate(time.Millisecond))
	case limited:
		drained.Late = 0
	}
	l.at = time.Time{}
	if limited {
		l.at = began
	}
}
