package scheduler

import (
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// seriesOf returns where the drains of a partition are told; nil without an observer.
func (s *Scheduler) seriesOf(partition string) observe.Series {
	if s.cfg.Observer == nil {
		return nil
	}
	queue, _, _ := lua.SplitPartition(partition)
	return s.cfg.Observer.Of(observe.Bridge, queue, "")
}

// tellDrained tells what a drain did. Each message counts as late as the oldest one.
func tellDrained(tell observe.Series, drained lua.Drained) {
	if drained.Moved > 0 {
		tell.Took(observe.Drained, drained.Moved, drained.Late)
	}
	if drained.Dead > 0 {
		tell.Add(observe.DeadDrained, drained.Dead)
	}
}
