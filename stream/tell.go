package stream

import (
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// told tells the observer that something happened n times.
func (p *partitionWorker) told(e observe.Event, n int) {
	if p.tell != nil && n > 0 {
		p.tell.Add(e, n)
	}
}

// tellHandling tells that a handler begins, how long after its message was due, and returns when that was. What the server's
// clock says at least, this machine's does not make less.
func (p *partitionWorker) tellHandling(d *delivery) (began time.Time) {
	began = time.Now()
	if !d.msg.Due.IsZero() {
		p.tell.Took(observe.Handling, 1, max(began.Sub(d.msg.Due), d.msg.Lateness()))
	}
	return began
}

func (p *partitionWorker) tellHandled(d *delivery, began time.Time) {
	d.returned = time.Now()
	p.tell.Took(observe.Handled, 1, d.returned.Sub(began))
}

var settlementEvents = map[Settlement]observe.Event{
	Acknowledged: observe.Acknowledged, Released: observe.Released, Skipped: observe.Skipped, Lost: observe.Lost,
	Unknown: observe.Unknown, Stuck: observe.Stuck,
}

// tellSettled tells how a delivery ended. how says how it failed, if it did.
func (p *partitionWorker) tellSettled(d *delivery, s Settlement, how *lua.Failure) {
	switch {
	case s == Retried && d.panicked:
		p.tell.Add(observe.RetriedPanic, 1)
	case s == Retried && how.Delay >= 0:
		p.tell.Add(observe.RetriedAfter, 1)
	case s == Retried:
		p.tell.Add(observe.RetriedError, 1)
	case s == Dead && how.Reason == lua.ReasonDeadLetter:
		p.tell.Add(observe.DeadLetter, 1)
	case s == Dead:
		p.tell.Add(observe.DeadMaxAttempts, 1)
	default:
		p.tell.Add(settlementEvents[s], 1)
	}
	if s == Acknowledged {
		p.tell.Add(observe.Attempts, max(1, d.msg.Attempt))
	}
	if s != Unknown && s != Stuck && !d.returned.IsZero() {
		p.tell.Took(observe.Settled, 1, time.Since(d.returned))
	}
}
