package bridge

import (
	"context"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/await"
)

// Limits of the progress and the result of a handler: see Message.SaveProgress and Message.SetResult.
const (
	MaxProgressBytes = stream.MaxProgressBytes // 4 KiB
	MaxResultBytes   = stream.MaxResultBytes   // 64 KiB
	MaxResultAge     = lua.MaxResultAge        // a week
)

// MessageResult is the result that a group's handler set with Message.SetResult: see [await.MessageResult].
type MessageResult = await.MessageResult

// DeadError tells why a group gave a message up: see [await.DeadError].
type DeadError = await.DeadError

// Errors of Client.Result and Client.WaitFor.
var (
	// ErrNoResult: Result found none. WaitFor: none will come, because the message was cancelled or never scheduled, was
	// acknowledged without a result, or its result has expired.
	ErrNoResult  = await.ErrNoResult
	ErrDead      = await.ErrDead      // the group gave the message up; errors.As with *DeadError tells why
	ErrDone      = await.ErrDone      // the message is done, and the caller waits until it is dead
	ErrManyWaits = await.ErrManyWaits // a Client waits for at most 1,000 messages at the same time
)

// Awaited is a state for which WaitFor waits: see [await.Awaited].
type Awaited = await.Awaited

// States for WaitFor.
const (
	AwaitReady = await.AwaitReady // the message has become ready for the group
	AwaitDone  = await.AwaitDone  // the group's handler has returned nil
	AwaitDead  = await.AwaitDead  // the group gave the message up
)

// KeepResult keeps the result of each group's handler for the given time, from 1 s to MaxResultAge, so that WaitFor and
// Result can return it. Without KeepResult nothing is kept. Results use memory of Redis: up to 64 KiB for each message
// and group, for all of this time.
func KeepResult(age time.Duration) Option {
	return func(m *NewMessage) {
		if age == 0 {
			m.Refuse("keep result", "0s", "must be at least 1s; without KeepResult no result is kept")
		}
		m.KeepResult = age
	}
}

// Result returns the result of a message for a group at once. ErrNoResult means that there is none, or none yet. It
// takes two round trips.
func (c *Client) Result(ctx context.Context, queue, id, group string) (MessageResult, error) {
	return c.waiter.Result(ctx, queue, id, group)
}

// WaitFor waits until a message that was scheduled with KeepResult is in a state for a group, and returns the result if
// the state is AwaitDone. It blocks until the message is in this state, or until ctx ends.
//
// WaitFor returns an error if the message will not come into this state. The error is a *DeadError (ErrDead) if the
// message died and the caller waits for another state. It is ErrDone if the message is done and the caller waits for
// AwaitDead. It is ErrNoResult if the message is nowhere: it was cancelled, never scheduled, or acknowledged without a
// result. A worker acknowledges without a result if it uses plain XACK, or if it is older than this release. It is also
// ErrNoResult if the message is ready, but the group does not exist, because none of its workers has run yet. In these
// cases WaitFor returns within some seconds. If Redis is away for some time, WaitFor goes on waiting.
//
// A result means that a handler has returned nil. The worker stored it in one step with the acknowledgement. If an ID
// is used again while the result of the earlier message is kept, WaitFor may return the earlier result. So use new IDs,
// which is the default, or use WaitAfter.
//
// WaitFor polls every 10 ms at first. Later, each pause is an eighth of the time that it has waited, and at most 2 s.
// While there is no result, it searches the streams of the queue for the message now and then. docs/operations/users.md
// lists the rights for this. At most 1,000 waits of a Client run at the same time; one more gets ErrManyWaits.
func (c *Client) WaitFor(ctx context.Context, queue, id, group string, state Awaited) (MessageResult, error) {
	return c.waiter.Wait(ctx, queue, id, group, state, time.Time{})
}

// WaitAfter is WaitFor without the results and dead letters from before a time, by the server's clock.
func (c *Client) WaitAfter(ctx context.Context, queue, id, group string, state Awaited, after time.Time) (MessageResult,
	error) {
	return c.waiter.Wait(ctx, queue, id, group, state, after)
}
