package stream

import (
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// report adds n events to the counters of the observer.
func (p *partitionWorker) report(e observe.Event, n int) {
	if p.tell != nil && n > 0 {
		p.tell.Add(e, n)
	}
}

// tellHandling reports that a handler begins, and how late. The lateness is never less than the lateness by the
// server's clock, even if this machine's clock is behind.
func (p *partitionWorker) tellHandling(d *delivery) {
	if p.tell != nil && !d.msg.Due.IsZero() {
		p.tell.AddTimed(observe.Handling, 1, max(d.read.Add(d.handling.began).Sub(d.msg.Due), d.msg.Lateness()))
	}
}

// tellHandled reports that a handler has returned, and how long it took.
func (p *partitionWorker) tellHandled(d *delivery) {
	if p.tell != nil {
		d.returned = time.Since(d.read)
		p.tell.AddTimed(observe.Handled, 1, d.returned-d.handling.began)
	}
}

// settledTally counts the settlements of a batch, so that the observer gets one call per counter. A nil tally counts
// nothing.
type settledTally struct {
	tell          observe.Series
	settledAt     time.Time
	counts        [observe.Events]int
	firstAttempts int // deliveries that were acknowledged at the first attempt
}

// newTally returns a tally for a batch that was just settled. Without an observer it returns nil.
func (p *partitionWorker) newTally() *settledTally {
	if p.tell == nil {
		return nil
	}
	return &settledTally{tell: p.tell, settledAt: time.Now()}
}

var settlementEvents = map[Settlement]observe.Event{
	Released: observe.Released, Snoozed: observe.Snoozed, Skipped: observe.Skipped, Lost: observe.Lost,
	Unknown: observe.Unknown, Cancelled: observe.CancelledHeld, Stuck: observe.Stuck,
}

func (t *settledTally) add(d *delivery) {
	if t == nil {
		return
	}
	s := d.settlement
	switch {
	case s == Acknowledged:
		t.counts[observe.Acknowledged]++
		if d.msg.Attempt > 1 {
			t.tell.AddSized(observe.Attempts, 1, min(d.msg.Attempt, lua.MaxAttemptsLimit))
		} else {
			t.firstAttempts++
		}
	case s == Retried && d.failure.Reason == lua.ReasonHandlerTimeout:
		t.counts[observe.RetriedTimeout]++
	case s == Retried && d.panicked:
		t.counts[observe.RetriedPanic]++
	case s == Retried && d.failure.Delay >= 0:
		t.counts[observe.RetriedAfter]++
	case s == Retried:
		t.counts[observe.RetriedError]++
	case s == Dead && d.failure.Reason == lua.ReasonDeadLetter:
		t.counts[observe.DeadLetter]++
	case s == Dead && d.failure.Reason == lua.ReasonRetryFor:
		t.counts[observe.DeadRetryFor]++
	case s == Dead && d.failure.Reason == lua.ReasonHandlerTimeout:
		t.counts[observe.DeadTimeout]++
	case s == Dead && d.failure.Reason == lua.ReasonMaxSnoozes:
		t.counts[observe.DeadSnoozes]++
	case s == Dead:
		t.counts[observe.DeadMaxAttempts]++
	default:
		t.counts[settlementEvents[s]]++
	}
	if s != Unknown && s != Stuck && d.returned > 0 {
		t.tell.AddTimed(observe.Settled, 1, max(0, t.settledAt.Sub(d.read)-d.returned))
	}
}

// report reports the counts to the observer.
func (t *settledTally) report() {
	if t == nil {
		return
	}
	if t.firstAttempts > 0 {
		t.tell.AddSized(observe.Attempts, t.firstAttempts, 1)
	}
	for e, n := range t.counts {
		if n > 0 {
			t.tell.Add(observe.Event(e), n)
		}
	}
}
