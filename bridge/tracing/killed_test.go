package tracing_test

import (
	"testing"

	"github.com/duestream/duestream/bridge"
)

// A killed worker cannot send the span of its attempt. Here the first attempt fails, the worker of the second is
// killed, and the third succeeds. The span of the third attempt is linked to the producer and to the first attempt,
// which was the last one with a span. An event of the span says that the second attempt was reclaimed.
func TestAttemptAfterAKilledWorkerIsLinked(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	serve(t, r, prefix)
	provider, spans := memory(t)
	if _, err := newClient(t, r, prefix).Schedule(t.Context(), "orders", nil, bridge.Header("traceparent", origin)); err != nil {
		t.Fatal(err)
	}
	work(t, r, prefix, provider, 1, 1) // one failure in one attempt
	first := look(t, spans, "process orders")
	kill := startChild(t, prefix)
	kill()
	spans.Reset()
	work(t, r, prefix, provider, 0, 1) // no failure in one attempt
	third := look(t, spans, "process orders")
	want(t, "attempt", attributes(third)["duestream.attempt"], "3")
	want(t, "span", line(third), "link "+origin[3:52]+" duestream.link=origin\n"+
		"link "+first.SpanContext.TraceID().String()+"-"+first.SpanContext.SpanID().String()+" duestream.link=last_attempt\n"+
		"event duestream.reclaimed duestream.error=visibility timeout: not acknowledged within 1000 ms\nconsumer Unset")
}
