package tracing

import "context"

// Carrying returns headers with the trace headers that a client adds for the context.
func Carrying(ctx context.Context, c Config, headers map[string]string) map[string]string {
	return with(headers, newTracer(c).inject(ctx))
}
