package stream

import (
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// told reports n events to the observer.
func (p *partitionWorker) told(e observe.Event, n int) {
	if p.tell != nil && n > 0 {
		p.tell.Add(e, n)
	}
}

// tellHandling reports that a handler begins, and its lateness. The lateness is at least the one by the server's clock,
// even if this machine's clock is behind.
func (p *partitionWorker) tellHandling(d *delivery) {
	if p.tell != nil && !d.msg.Due.IsZero() {
		p.tell.AddTimed(observe.Handling, 1, max(d.read.Add(d.handling.began).Sub(d.msg.Due), d.msg.Lateness()))
	}
}

func (p *partitionWorker) tellHandled(d *delivery) {
	if p.tell != nil {
		d.returned = time.Since(d.read)
		p.tell.AddTimed(observe.Handled, 1, d.returned-d.handling.began)
	}
}

// settledTally counts the settlements of a batch, so that the observer gets one call per counter.
type settledTally struct {
	tell    observe.Series
	at      time.Time
	counts  [observe.Events]int
	first   int          // acknowledged at the first attempt
	failure *lua.Failure // of the delivery added next, if it failed
}

// newTally returns a tally for a batch that was just settled; nil without an observer.
func (p *partitionWorker) newTally() *settledTally {
	if p.tell == nil {
		return nil
	}
	return &settledTally{tell: p.tell, at: time.Now()}
}

var settlementEvents = map[Settlement]observe.Event{
	Released: observe.Released, Snoozed: observe.Snoozed, Skipped: observe.Skipped, Lost: observe.Lost,
	Unknown: observe.Unknown, Cancelled: observe.CancelledHeld, Stuck: observe.Stuck,
}

func (t *settledTally) add(d *delivery, s Settlement) {
	switch {
	case s == Acknowledged:
		t.counts[observe.Acknowledged]++
		if d.msg.Attempt > 1 {
			t.tell.AddSized(observe.Attempts, 1, min(d.msg.Attempt, lua.MaxAttemptsLimit))
		} else {
			t.first++
		}
	case s == Retried && t.failure.Reason == lua.ReasonHandlerTimeout:
		t.counts[observe.RetriedTimeout]++
	case s == Retried && d.panicked:
		t.counts[observe.RetriedPanic]++
	case s == Retried && t.failure.Delay >= 0:
		t.counts[observe.RetriedAfter]++
	case s == Retried:
		t.counts[observe.RetriedError]++
	case s == Dead && t.failure.Reason == lua.ReasonDeadLetter:
		t.counts[observe.DeadLetter]++
	case s == Dead && t.failure.Reason == lua.ReasonRetryFor:
		t.counts[observe.DeadRetryFor]++
	case s == Dead && t.failure.Reason == lua.ReasonHandlerTimeout:
		t.counts[observe.DeadTimeout]++
	case s == Dead && t.failure.Reason == lua.ReasonMaxSnoozes:
		t.counts[observe.DeadSnoozes]++
	case s == Dead:
		t.counts[observe.DeadMaxAttempts]++
	default:
		t.counts[settlementEvents[s]]++
	}
	if s != Unknown && s != Stuck && d.returned > 0 {
		t.tell.AddTimed(observe.Settled, 1, max(0, t.at.Sub(d.read)-d.returned))
	}
}

// tellSettled reports the settlements of a batch to the observer.
func (p *partitionWorker) tellSettled(t *settledTally) {
	if t == nil {
		return
	}
	if t.first > 0 {
		t.tell.AddSized(observe.Attempts, t.first, 1)
	}
	for e, n := range t.counts {
		if n > 0 {
			t.tell.Add(observe.Event(e), n)
		}
	}
}
