package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Result returns the result of a message for a group at once. bridge.ErrNoResult means that there is none, or none yet.
func (a *Admin) Result(ctx context.Context, queue, id, group string) (bridge.MessageResult, error) {
	return a.waiter.Result(ctx, queue, id, group)
}

// LookForResult returns a result as Result does. If there is none, it searches the queue for the message, in bounded
// steps. The error then tells why there is none: ErrNotDone, a *bridge.DeadError (bridge.ErrDead), or
// bridge.ErrNoResult if the search did not find the message.
func (a *Admin) LookForResult(ctx context.Context, queue, id, group string) (bridge.MessageResult, error) {
	return a.waiter.Look(ctx, queue, id, group)
}

// WaitFor waits until a message is in a state for a group, and returns its result if the state is bridge.AwaitDone and
// the message was scheduled with KeepResult. It ends and polls like [bridge.Client.WaitFor], and has the same bounds.
// Handles that were made from one another, for example with As, share the bound of 1,000 waits.
func (a *Admin) WaitFor(ctx context.Context, queue, id, group string,
	state bridge.Awaited) (bridge.MessageResult, error) {
	return a.waiter.Wait(ctx, queue, id, group, state, time.Time{})
}
