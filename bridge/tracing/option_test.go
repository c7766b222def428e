package tracing_test

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
)

// A message of an outbox is sent without the context of the request, so it carries the span of the request itself.
func TestOptionGivesAMessageTheTraceOfAContext(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	ctx, request := provider.Tracer("shop").Start(t.Context(), "POST /orders")
	m := bridge.NewMessage{Headers: map[string]string{"kind": "x"}}
	tracing.Option(ctx, tracing.Config{Provider: provider})(&m)
	want(t, "headers", fmt.Sprint(m.Headers), fmt.Sprint(map[string]string{"kind": "x",
		"traceparent": fmt.Sprintf("00-%s-%s-01", request.SpanContext().TraceID(), request.SpanContext().SpanID())}))
	want(t, "spans", fmt.Sprint(len(spans.GetSpans())), "0")
	m.Headers = nil
	tracing.Option(ctx, tracing.Config{})(&m)
	want(t, "headers without a provider", fmt.Sprint(m.Headers), "map[]")
}
