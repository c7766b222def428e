package tracing

import (
	"context"

	"github.com/duestream/duestream/bridge"
)

// SendMiddleware returns middleware for bridge.ClientConfig.Middleware that makes the span "schedule <queue>" for each
// call, and writes it into the headers of the messages, as Client does. In contrast to Client, it also sees
// bridge.Kind.Schedule. Do not use both, or each call has two spans.
func SendMiddleware(c Config) bridge.SendMiddleware {
	return func(next bridge.Sender) bridge.Sender {
		if c.Provider == nil {
			return next
		}
		t := newTracer(c)
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			if len(messages) != 1 {
				return t.sendBatch(ctx, queue, messages, next)
			}
			var results []bridge.Result
			var failed error
			one := func(ctx context.Context, queue string, m bridge.NewMessage) (bridge.Receipt, error) {
				results, failed = next(ctx, queue, []bridge.NewMessage{m})
				if failed != nil || len(results) == 0 {
					return bridge.Receipt{}, failed
				}
				return results[0].Receipt, results[0].Err
			}
			_, _ = t.send(ctx, queue, messages[0], one) // the results hold its error
			return results, failed
		}
	}
}
