package scheduler

import (
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// seriesOf returns the series to which the drains of a partition are reported. Without an observer it returns nil.
func (s *Scheduler) seriesOf(partition string) observe.Series {
	if s.cfg.Observer == nil {
		return nil
	}
	queue, _, _ := lua.SplitPartition(partition)
	return s.cfg.Observer.Series(observe.Bridge, queue, "")
}

// reportDrained reports a drain to the observer. The lateness of the oldest message counts for all messages.
func reportDrained(series observe.Series, drained lua.Drained) {
	if series == nil {
		return
	}
	if drained.Moved > 0 {
		series.AddTimed(observe.Drained, drained.Moved, drained.Late)
	}
	if drained.Dead > 0 {
		series.Add(observe.DeadDrained, drained.Dead)
	}
}

// readyLimitHold remembers the last drain of a loop if the ready limit held messages back.
type readyLimitHold struct {
	lastDrain time.Time // zero = the limit held nothing back
}

// subtractFrom removes from the lateness of a drain the time for which a ready limit held the messages, as far as this
// loop saw the limit. If the limit held messages back in the last drain, lateness counts from the last drain. If it
// holds messages back for the first time, lateness is zero. began is the time at which the drain began.
func (h *readyLimitHold) subtractFrom(drained *lua.Drained, began time.Time) {
	holds := drained.Held == lua.HeldByReadyLimit
	switch {
	case !h.lastDrain.IsZero():
		drained.Late = min(drained.Late, began.Sub(h.lastDrain).Truncate(time.Millisecond))
	case holds:
		drained.Late = 0
	}
	h.lastDrain = time.Time{}
	if holds {
		h.lastDrain = began
	}
}
