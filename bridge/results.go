package bridge

import (
	"context"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/await"
)

// Limits of what a handler stores: see Message.SaveProgress and Message.SetResult.
const (
	MaxProgressBytes = stream.MaxProgressBytes // 4 KiB
	MaxResultBytes   = stream.MaxResultBytes   // 64 KiB
	MaxResultAge     = lua.MaxResultAge        // a week
)

// MessageResult is what a group's handler set with Message.SetResult: see [await.MessageResult].
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

// KeepResult keeps the result of each group's handler for so long, from 1 s to MaxResultAge, so that WaitFor and Result
// can return it. Without KeepResult nothing is kept. Results use memory of Redis: up to 64 KiB for each message and
// group, for all of the age.
func KeepResult(age time.Duration) Option {
	return func(m *NewMessage) {
		if age == 0 {
			m.Refuse("keep result", "0s", "must be at least 1s; without KeepResult no result is kept")
		}
		m.KeepResult = age
	}
}

// Result returns the result of a message for a group at once. ErrNoResult: there is none, or none yet. It takes two
// round trips.
func (c *Client) Result(ctx context.Context, queue, id, group string) (MessageResult, error) {
	return c.waiter.Result(ctx, queue, id, group)
}

// WaitFor waits until a message that was scheduled with KeepResult is in a state for a group, and returns the result if
// the state is AwaitDone. It blocks until then, or until ctx ends.
//
// It does not wait for what will not come: a message that died is a *DeadError (ErrDead), a message that is done while
// the caller waits for AwaitDead is ErrDone, and a message that is nowhere is ErrNoResult. The message is nowhere if it
// was cancelled, never scheduled, or acknowledged without a result: by a worker that uses plain XACK, or that is older
// than this release. Then WaitFor returns within some seconds. If Redis is away for some time, it goes on waiting.
//
// A result tells that a handler has returned nil, and was stored in one step with the acknowledgement. If an ID is used
// again while the result of the earlier message is kept, WaitFor may return the earlier result: use new IDs, which is
// the default, or leave out results before a time with WaitAfter.
//
// WaitFor polls: every 10 ms at first, later every eighth of the time that it has waited, at most every 2 s. While
// there is no result, it searches the streams of the queue for the message now and then; see
// docs/operations/users.md for the rights. At most 1,000 waits of a Client run at the same time; one more gets
// ErrManyWaits.
func (c *Client) WaitFor(ctx context.Context, queue, id, group string, state Awaited) (MessageResult, error) {
	return c.waiter.Wait(ctx, queue, id, group, state, time.Time{})
}

// WaitAfter is WaitFor that leaves out results and dead letters from before a time, by the server's clock.
func (c *Client) WaitAfter(ctx context.Context, queue, id, group string, state Awaited, after time.Time) (MessageResult,
	error) {
	return c.waiter.Wait(ctx, queue, id, group, state, after)
}
