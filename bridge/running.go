package bridge

import (
	"context"

	"github.com/duestream/duestream/scheduler/producer"
)

// CancelVerdict tells how CancelRunning ended a message, or why it did not.
//
//	type CancelVerdict string
type CancelVerdict = producer.CancelVerdict

// Verdicts of CancelRunning.
const (
	// VerdictCancelled: nothing of the message runs, or will start.
	VerdictCancelled = producer.Cancelled
	// VerdictCancelling: a worker holds it. It hears of that with its next extend, and the message ends when it lets go.
	VerdictCancelling = producer.Cancelling
	// VerdictNotFound: nothing of it waits, is ready, or is held.
	VerdictNotFound = producer.NotFound
	// VerdictUnread: the given group has not read the message yet, and the message is not cancelled. Either it is
	// scheduled for all groups, or it is ready and another group needs it.
	VerdictUnread = producer.Unread
)

// Holder is a worker that holds a message.
//
//	type Holder struct {
//		Group    string
//		Consumer string
//	}
type Holder = producer.Holder

// Cancellation tells how CancelRunning ended a message.
//
//	type Cancellation struct {
//		ID      string
//		Verdict CancelVerdict
//		Holders []Holder // who hears of it; with Cancelling
//		Retries []Retry  // that waited, and were taken
//	}
type Cancellation = producer.Cancellation

// CancelRunning cancels messages wherever they are: scheduled, waiting for a retry, ready, or held by a worker. It does so for
// all groups, or with a group for that one alone; then what waits for its first delivery stays, because that is for all.
//
// The worker that holds a message hears of it with its next extend, within 5 seconds and a third of the visibility timeout: its
// handler's context is cancelled with ErrCancelled, and whatever the handler returns, the message is done for the group. Only a
// handler that returned nil before is acknowledged. When the worker dies, the message ends all the same. The next message of the
// same key waits until the worker has let go.
//
// The answers come in the order of ids. No key says where entries are, so the call looks through the streams and the schedules
// of all partitions, in steps of a thousand: seconds for a million messages. With an error, the answers say what was done so
// far, and VerdictNotFound is not definite. Errors as for Cancel; and ErrOldBridge, before anything is changed, while a
// bridge is alive that makes a dead letter of a cancelled delivery, without ClientConfig.AllowOldBridges. The user
// needs more than Cancel does: see Users in docs/OPERATIONS.md.
func (c *Client) CancelRunning(ctx context.Context, queue, group string, ids ...string) ([]Cancellation, error) {
	return c.producer.CancelRunning(ctx, queue, group, ids...)
}
