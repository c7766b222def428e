// Package observe lets clients, bridges and workers report what they do to an observer. Without an observer nothing is
// reported or allocated: the layers then keep a nil Series. Programs use these types by their names in package bridge.
package observe

import (
	"time"

	"github.com/redis/rueidis"
)

// Observer receives the events and durations of clients, bridges, workers and operators. One Observer may serve any
// number of them. Its methods, and those of its Series, are called from many goroutines. They must not block, because
// their time is the caller's.
type Observer interface {
	// Series returns the receiver of the events of a queue, or of one of its groups if group is not "". An empty queue
	// stands for the events of the bridge itself. The result must not be nil. The caller may keep it.
	Series(part Part, queue, group string) Series
	// Call receives each call to Redis: the name of the script that was run ("" if the call runs no script), the
	// duration and the error.
	Call(script string, took time.Duration, err error)
	// BridgeStarted receives a bridge that begins to run. Until the bridge calls ended, the observer may read the view.
	// A nil ended is not called.
	BridgeStarted(BridgeView) (ended func())
}

// Series receives the events of a queue, or of a group.
type Series interface {
	// Add reports that an event happened n times.
	Add(e Event, n int)
	// AddTimed is Add for n events with the same duration.
	AddTimed(e Event, n int, d time.Duration)
	// AddSized is Add for n events with the same number. Each kind of event is always reported by the same one of these
	// three methods.
	AddSized(e Event, n, size int)
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

// SeriesOf returns the series of a part for a queue and group; nil without an observer.
func SeriesOf(o Observer, part Part, queue, group string) Series {
	if o == nil {
		return nil
	}
	return o.Series(part, queue, group)
}

// BridgeView is what an observer may read about a running bridge. None of its functions touches Redis.
type BridgeView struct {
	Client rueidis.Client // the bridge's client, whose calls are not reported to the observer
	Prefix string
	Owned  func() []string // names of the partitions that the bridge owns
	Status func() Status
}

// Status is a bridge's own view of itself, in numbers.
type Status struct {
	LastHeartbeat             time.Time // zero = none yet
	Live                      int       // how many bridges are alive
	Queues, Partitions, Owned int       // how many queues and partitions exist, and how many partitions the bridge owns
}

// Event is a kind of event.
type Event uint8

// Events. The documentation of package bridge says what each event counts, and which events are reported with a
// duration or a number.
const (
	// of a client
	Enqueued Event = iota
	EnqueuedReady
	Duplicate
	Cancelled
	Rescheduled

	// of a bridge, queue ""
	Heartbeat
	BridgeReconnect

	// of a bridge and a queue
	Drained
	DeadDrained
	Freed
	WindowEnded
	OrphanDeleted

	// of a bridge and a group
	Reclaimed
	RetriedVisibility
	DeadReclaimed

	// of a worker
	Delivered
	Handling
	Handled
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
	Acking
	Failing
	Released
	Snoozed
	CancelledHeld
	Skipped
	Lost
	Unknown
	Stuck
	Settled
	Attempts

	HandlerTimeout
	Abandoned
	AbandonedReturned
	WorkerReconnect

	// of an operator
	Redriven
	Purged

	Events // the number of kinds
)
