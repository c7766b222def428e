package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/duestream/duestream/lua"
)

// Sender stores the messages of one call of Send, Schedule, SendBatch or Kind.Schedule. A single message is a slice of
// one. It returns one result for each message, in their order, or an error if it stored none.
type Sender func(ctx context.Context, queue string, messages []NewMessage) ([]Result, error)

// SendMiddleware wraps a Sender, for example to log each call, to add a header, or to refuse messages: see
// ClientConfig.Middleware. It must not return nil.
//
// The slice and the headers are copies, so a middleware may change them. It must not change the bytes of a payload. To
// refuse the whole call, a middleware returns an error without calling the next Sender. To refuse some messages, it
// passes the others on, and puts its own error into the results of the refused ones. The client repeats calls after
// temporary errors. A middleware that calls the next Sender again may store messages without an ID twice.
type SendMiddleware func(next Sender) Sender

// chain wraps a Sender in middleware, the first one outermost. The error has one fault for each middleware that is nil
// or returns nil.
func chain(sender Sender, middleware []SendMiddleware) (Sender, []error) {
	var faults []error
	for _, one := range slices.Backward(middleware) {
		if one == nil {
			faults = append(faults, lua.Required("middleware", false))
			continue
		}
		wrapped := one(sender)
		if wrapped == nil {
			faults = append(faults, lua.Invalid("middleware", "nil", "must return a Sender"))
			continue
		}
		sender = wrapped
	}
	return sender, faults
}

// sendThrough sends copies of messages through the middleware.
func (c *Client) sendThrough(ctx context.Context, queue string, messages []NewMessage) ([]Result, error) {
	copies := slices.Clone(messages)
	for i := range copies {
		copies[i].Headers = maps.Clone(copies[i].Headers)
	}
	results, err := c.sender(ctx, queue, copies)
	if err == nil && len(results) != len(messages) {
		err = fmt.Errorf("schedule %s: the middleware returned %d results for %d messages, which may have been stored",
			queue, len(results), len(messages))
	}
	return results, err
}
