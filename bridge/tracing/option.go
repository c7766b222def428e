package tracing

import (
	"context"

	"github.com/duestream/duestream/bridge"
)

// Option returns an option that gives a message the trace and the baggage of ctx, as the calls of a Client do, but
// without a span of its own. Use it for messages that are sent later without ctx, such as messages of an outbox. The
// client of a relay must not trace, because its own span would replace this trace.
func Option(ctx context.Context, c Config) bridge.Option {
	if c.Provider == nil {
		return func(*bridge.NewMessage) {}
	}
	found := newTracer(c).inject(ctx)
	return func(m *bridge.NewMessage) { m.Headers = with(m.Headers, found) }
}
