package tracing

import "context"

// Carrying returns headers with what the context says, as a client has a message carry it.
func Carrying(ctx context.Context, c Config, headers map[string]string) map[string]string {
	return with(headers, newTracer(c).inject(ctx))
}
