package bridge

import "github.com/duestream/duestream/internal/observe"

// Observer receives the events of clients, bridges, workers and operators: see [observe.Observer]. Any number of
// clients, bridges and workers may share one Observer. Package bridge/metrics has an Observer for Prometheus.
type Observer = observe.Observer

// Series receives the events of a queue or a group: see [observe.Series].
type Series = observe.Series

// Part is the kind of program that reports an event: see [observe.Part].
type Part = observe.Part

// Parts.
const (
	PartClient   = observe.Client   // a Client
	PartBridge   = observe.Bridge   // a Bridge
	PartWorker   = observe.Worker   // a Worker
	PartOperator = observe.Operator // an admin.Admin
)

// BridgeView is the view of a running bridge that an Observer may read: see [observe.BridgeView].
type BridgeView = observe.BridgeView

// BridgeNumbers is the Status of a bridge in numbers, for an Observer: see [observe.Status].
type BridgeNumbers = observe.Status

// Event is a kind of event: see [observe.Event].
type Event = observe.Event

// Kinds of events. Most are reported by Add. In the comments, "AddTimed: a duration" means that AddTimed reports the
// event with this duration, and "AddSized: a number" means that AddSized reports the event with this number.
const (
	// of a client
	EventEnqueued      = observe.Enqueued      // messages stored in one call
	EventEnqueuedReady = observe.EnqueuedReady // messages among these that became ready at once
	EventDuplicate     = observe.Duplicate     // messages refused because of their ID
	EventCancelled     = observe.Cancelled     // messages and retries that were cancelled
	EventRescheduled   = observe.Rescheduled   // messages and retries that were moved to another due time

	// of a bridge, with queue ""
	EventHeartbeat       = observe.Heartbeat       // a heartbeat that succeeded
	EventBridgeReconnect = observe.BridgeReconnect // the first successful heartbeat after an outage

	// of a bridge and a queue
	EventDrained       = observe.Drained       // drained messages; AddTimed: the lateness of the oldest one
	EventDeadDrained   = observe.DeadDrained   // dead-lettered instead of drained, for example because they had expired
	EventFreed         = observe.Freed         // entries that every group had acknowledged
	EventWindowEnded   = observe.WindowEnded   // dedup windows that ended and were removed
	EventOrphanDeleted = observe.OrphanDeleted // bodies without a message that were deleted

	// of a bridge and a group
	EventReclaimed         = observe.Reclaimed         // abandoned deliveries that ended, with any outcome
	EventRetriedVisibility = observe.RetriedVisibility // the retried ones among these
	EventDeadReclaimed     = observe.DeadReclaimed     // the dead-lettered ones among these

	// of a worker
	EventDelivered       = observe.Delivered       // messages given to the worker
	EventHandling        = observe.Handling        // AddTimed: from the due time to the start of the handler
	EventHandled         = observe.Handled         // AddTimed: the time that the handler took
	EventAcknowledged    = observe.Acknowledged    // by a handler that returned nil
	EventRetriedError    = observe.RetriedError    // retried with the policy's delay
	EventRetriedAfter    = observe.RetriedAfter    // retried with the handler's delay
	EventRetriedPanic    = observe.RetriedPanic    // retried after a panic
	EventRetriedTimeout  = observe.RetriedTimeout  // retried after a handler timeout
	EventDeadMaxAttempts = observe.DeadMaxAttempts // dead-lettered: no attempt is left
	EventDeadRetryFor    = observe.DeadRetryFor    // dead-lettered: the next retry would be too late
	EventDeadTimeout     = observe.DeadTimeout     // dead-lettered after a handler timeout
	EventDeadSnoozes     = observe.DeadSnoozes     // dead-lettered: no snooze is left
	EventDeadLetter      = observe.DeadLetter      // dead-lettered by the handler
	EventAcking          = observe.Acking          // acknowledgements in one call, whatever their result
	EventFailing         = observe.Failing         // failures in one call, whatever their result
	EventReleased        = observe.Released        // given back by a handler, or by a worker that stops
	EventSnoozed         = observe.Snoozed         // delayed by a handler
	EventCancelledHeld   = observe.CancelledHeld   // cancelled by a client while the worker held them
	EventSkipped         = observe.Skipped         // meant for another group
	EventLost            = observe.Lost            // the worker did not hold the entry any more
	EventUnknown         = observe.Unknown         // the worker was stopped before Redis answered
	EventStuck           = observe.Stuck           // the dead-letter stream refused the entry; bridges report this, too
	EventSettled         = observe.Settled         // AddTimed: from the return of the handler to the answer of Redis
	EventAttempts        = observe.Attempts        // AddSized: the attempts that an acknowledged message needed

	EventHandlerTimeout    = observe.HandlerTimeout    // a handler used up its time
	EventAbandoned         = observe.Abandoned         // a handler ignored its cancelled context
	EventAbandonedReturned = observe.AbandonedReturned // an abandoned handler returned
	EventWorkerReconnect   = observe.WorkerReconnect   // a worker reads again after an outage

	// of an operator
	EventRedriven = observe.Redriven // dead letters that were scheduled again
	EventPurged   = observe.Purged   // dead letters that were deleted

	EventKinds = observe.Events // the number of kinds
)
