package bridge

import (
	"context"

	"github.com/duestream/duestream/scheduler/producer"
)

// CancelVerdict is the result of CancelRunning for one message: see [producer.CancelVerdict].
type CancelVerdict = producer.CancelVerdict

// Verdicts of CancelRunning.
const (
	// VerdictCancelled: no handler runs the message, and none will start.
	VerdictCancelled = producer.Cancelled
	// VerdictCancelling: a worker holds the message. The worker learns of the cancellation with its next extend, and
	// the message ends when the worker releases it.
	VerdictCancelling = producer.Cancelling
	// VerdictNotFound: the message is not scheduled, not ready, not held, and has no retry. This may be wrong if the
	// message became ready and failed again during each of three walks through the schedule.
	VerdictNotFound = producer.NotFound
	// VerdictUnread: the message is unread by the given group, and the call did not cancel it. Either the message is
	// scheduled for all groups, or it is ready and another group needs it.
	VerdictUnread = producer.Unread
)

// Holder is a worker that holds a message: see [producer.Holder].
type Holder = producer.Holder

// Cancellation describes how CancelRunning ended a message: see [producer.Cancellation].
type Cancellation = producer.Cancellation

// CancelRunning cancels messages in any state: scheduled, waiting for a retry, ready, or held by a worker. An empty
// group means all groups. With a group it cancels only for that group. Then a message that waits for its first delivery
// stays scheduled, because that delivery is for all groups.
//
// A worker that holds a message learns of the cancellation with its next extend, within both 5 seconds and a third of
// the visibility timeout. The worker cancels the handler's context with ErrCancelled. The message is done for the
// group, whatever the handler returns. It counts as acknowledged only if the handler had returned nil before. If the
// worker dies, the message ends as well. The next message of the same ordering key waits until the worker has released
// the message.
//
// The results are in the order of ids. Redis has no index of entries, so the call scans the streams and schedules of
// all partitions in steps of a thousand. A scan of a million messages takes seconds. With an error, the results
// describe the work done so far, and VerdictNotFound is not definite. Errors as for Cancel. Also ErrOldBridge, before
// any change, while a bridge is alive that would dead-letter a cancelled delivery, unless ClientConfig.AllowOldBridges
// is set. The user needs more rights than for Cancel: see docs/operations/users.md.
func (c *Client) CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]Cancellation, error) {
	return c.producer.CancelRunning(ctx, queue, group, ids...)
}
