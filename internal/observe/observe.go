// Package observe lets clients, bridges and workers report what they do to an observer. Without an observer nothing is
// reported or allocated: the layers then keep a nil Series.
package observe

import (
	"time"

	"github.com/redis/rueidis"
)

// Observer is told what happens. Its methods, and those of its Series, are called from many goroutines. They must not
// block, and cost the caller's time.
type Observer interface {
	// Of returns where a part tells what happens to a queue, and to one of its groups unless group is "". The parts ask once and
	// keep the answer.
	Of(part Part, queue, group string) Series
	// Call is told of a call to Redis: the script that was run, "" for any other command, how long it took, and its error.
	Call(script string, took time.Duration, err error)
	// Serves is told of a bridge when it begins to run, and asks it for what it owns until the bridge calls ended.
	Serves(Served) (ended func())
}

// Series receives the events of a queue, or of a group.
type Series interface {
	// Add reports that an event happened n times in one call.
	Add(e Event, n int)
	// Took is Add for events with a duration, the same for each of the n.
	Took(e Event, n int, d time.Duration)
}

// Part is the kind of program that reports.
type Part uint8

// Parts. A bridge reports events before a message is ready to the series of the queue, and later events to the series
// of the group.
const (
	Client Part = iota
	Bridge
	Worker
	Operator
)

// Of returns the series of a part for a queue and group; nil without an observer.
func Of(o Observer, part Part, queue, group string) Series {
	if o == nil {
		return nil
	}
	return o.Of(part, queue, group)
}

// Served is the data that an observer may ask a bridge for. None of it touches Redis.
type Served struct {
	Client rueidis.Client
	Prefix string
	Owned  func() []string // names of the partitions that it owns
	Status func() Status
}

// Status is a bridge's own view of itself.
type Status struct {
	LastHeartbeat             time.Time // zero = none yet
	Live                      int       // bridges
	Queues, Partitions, Owned int
}

// Event is a kind of event.
type Event uint8

// Events.
const (
	// of a client
	Enqueued      Event = iota // in one call
	EnqueuedReady              // how many of these went straight into the stream
	Duplicate
	Cancelled
	Rescheduled

	// of a bridge, queue ""
	Heartbeat       // a good one
	BridgeReconnect // the first good heartbeat after an outage

	// of a bridge and a queue
	Drained // Took: since the oldest of them was due
	DeadDrained
	Freed
	WindowEnded
	OrphanDeleted

	// of a bridge and a group
	Reclaimed // retried, dead-lettered or skipped
	RetriedVisibility
	DeadReclaimed

	// of a worker
	Delivered
	Handling // Took: since the message was due
	Handled  // Took: the time of the handler
	Acknowledged
	RetriedError
	RetriedAfter
	RetriedPanic
	RetriedTimeout
	DeadMaxAttempts
	DeadRetryFor
	DeadTimeout
	DeadSnoozes
	DeadLetter
	Acking  // acknowledgements in one call, whatever their result
	Failing // failures in one call, likewise
	Released
	Snoozed
	CancelledHeld // by somebody's Cancel, while the worker held it
	Skipped
	Lost
	Unknown
	Stuck
	Settled        // Took: since the handler returned
	Attempts       // Took: how many an acknowledged message needed, one counted as a second
	HandlerTimeout // a handler used up its time
	Abandoned      // a handler ignored its cancelled context
	AbandonedReturned
	WorkerReconnect // a worker reads again after an outage

	// of an operator
	Redriven
	Purged

	Events // the number of kinds
)
