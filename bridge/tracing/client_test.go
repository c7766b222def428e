package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// dial connects to the shared server, with a prefix of the test's own.
func dial(t *testing.T) (r *bridge.Redis, prefix string) {
	t.Helper()
	server := redistest.Shared(t)
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, server.Prefix(t)
}

func newClient(t *testing.T, r *bridge.Redis, prefix string) *bridge.Client {
	t.Helper()
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// meta returns the meta of a scheduled message.
func meta(t *testing.T, r *bridge.Redis, prefix, id string) string {
	t.Helper()
	text, err := r.Client.Do(t.Context(),
		r.Client.B().Hget().Key(lua.NewKeys(prefix, "orders").Meta).Field(id).Build()).ToString()
	if err != nil {
		t.Fatalf("meta of %s: %v", id, err)
	}
	return text
}

// A message carries the span of the call that scheduled it, and the baggage of the call's context. All messages of a
// batch carry the same span. The headers map that the caller passed is left unchanged.
func TestMessageCarriesTheSpanThatScheduledIt(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	provider, spans := memory(t)
	c := redistest.Must(tracing.NewClient(newClient(t, r, prefix), tracing.Config{Provider: provider}))
	ctx, request := provider.Tracer("shop").Start(t.Context(), "POST /orders")
	ctx = baggage.ContextWithBaggage(ctx, must(baggage.Parse("tenant=acme")))
	receipt, err := c.Schedule(ctx, "orders", []byte("four"), bridge.In(time.Hour), bridge.WithID("m"),
		bridge.Header("kind", "x"))
	if err != nil {
		t.Fatal(err)
	}
	own := look(t, spans, "schedule orders")
	want(t, "span", line(own), "producer Unset")
	want(t, "parent", own.Parent.SpanID(), request.SpanContext().SpanID())
	want(t, "attributes", fmt.Sprint(attributes(own)), fmt.Sprint(map[string]string{
		"messaging.system": "duestream", "messaging.destination.name": "orders", "messaging.operation.name": "schedule",
		"messaging.operation.type": "send", "messaging.message.id": "m", "messaging.message.body.size": "4",
		"duestream.due_ms": fmt.Sprint(receipt.Due.UnixMilli()), "duestream.ready": "false",
	}))
	header := fmt.Sprintf("00-%s-%s-01", own.SpanContext.TraceID(), own.SpanContext.SpanID())
	want(t, "meta", meta(t, r, prefix, "m"), lua.EncodeMeta(
		map[string]string{"traceparent": header, "baggage": "tenant=acme", "kind": "x"}, 0, time.Time{}))

	_, err = c.Schedule(ctx, "orders", nil, bridge.In(time.Hour), bridge.WithID("m"))
	if !errors.Is(err, bridge.ErrDuplicate) {
		t.Fatal(err)
	}
	spans.Reset()
	headers := map[string]string{"kind": "x"}
	results, err := c.ScheduleBatch(ctx, "orders", []bridge.NewMessage{{ID: "a", Headers: headers, Delay: time.Hour},
		{ID: "m", Delay: time.Hour}, {ID: "b", Delay: time.Hour}})
	if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, bridge.ErrDuplicate) || results[2].Err != nil {
		t.Fatal(results, err)
	}
	own = look(t, spans, "schedule orders")
	want(t, "batch", line(own), "producer Error: 1 of 3 refused")
	want(t, "messages and refused ones",
		attributes(own)["messaging.batch.message_count"]+attributes(own)["duestream.refused"],
		"31") // 3 messages, 1 refused
	header = fmt.Sprintf("00-%s-%s-01", own.SpanContext.TraceID(), own.SpanContext.SpanID())
	want(t, "meta of b", meta(t, r, prefix, "b"), lua.EncodeMeta(
		map[string]string{"traceparent": header, "baggage": "tenant=acme"}, 0, time.Time{}))
	want(t, "the caller's headers", fmt.Sprint(headers), "map[kind:x]")
	spans.Reset()
	if _, err := c.Send(ctx, "orders", bridge.NewMessage{ID: "s", Headers: headers, Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	own = look(t, spans, "schedule orders")
	header = fmt.Sprintf("00-%s-%s-01", own.SpanContext.TraceID(), own.SpanContext.SpanID())
	want(t, "meta of s", meta(t, r, prefix, "s"), lua.EncodeMeta(
		map[string]string{"traceparent": header, "baggage": "tenant=acme", "kind": "x"}, 0, time.Time{}))
	want(t, "the caller's headers", fmt.Sprint(headers), "map[kind:x]")
	request.End()
}

// The span of a refused message has the kind of the error.
func TestRefusedMessageIsAnErrorOfItsSpan(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	provider, spans := memory(t)
	c := redistest.Must(tracing.NewClient(newClient(t, r, prefix), tracing.Config{Provider: provider}))
	if _, err := c.Schedule(t.Context(), "no such/name", nil); !errors.Is(err, bridge.ErrInvalid) {
		t.Fatal(err)
	}
	want(t, "error.type", attributes(look(t, spans, "schedule no such/name"))["error.type"], "invalid")
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := c.ScheduleBatch(ended, "orders", []bridge.NewMessage{{}}); err == nil {
		t.Log("the call succeeded although its context was cancelled")
	}
	if err := c.Close(); err != nil { // it closes the bridge.Client
		t.Fatal(err)
	}
	spans.Reset()
	if _, err := c.ScheduleBatch(t.Context(), "orders", []bridge.NewMessage{{}}); !errors.Is(err, bridge.ErrClosed) {
		t.Fatal(err)
	}
	want(t, "error.type", attributes(look(t, spans, "schedule orders"))["error.type"], "closed")
}

// Without a provider the client adds no header. With a provider that records nothing, the client passes the trace of
// the context on.
func TestClientThatRecordsNothing(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	plain := newClient(t, r, prefix)
	ctx := trace.ContextWithSpanContext(t.Context(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
	for id, c := range map[string]tracing.Config{"off": {}, "noop": {Provider: noop.NewTracerProvider()}} {
		client := redistest.Must(tracing.NewClient(plain, c))
		if _, err := client.Schedule(ctx, "orders", nil, bridge.WithID(id), bridge.In(time.Hour),
			bridge.Header("a", "b")); err != nil {
			t.Fatal(err)
		}
		if _, err := client.ScheduleBatch(ctx, "orders", []bridge.NewMessage{
			{ID: id + "-2", Delay: time.Hour, Headers: map[string]string{"a": "b"}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, suffix := range []string{"", "-2"} {
		want(t, "off", meta(t, r, prefix, "off"+suffix), `{"h:a":"b"}`)
		want(t, "noop", meta(t, r, prefix, "noop"+suffix), lua.EncodeMeta(map[string]string{"a": "b",
			"traceparent": "00-01000000000000000000000000000000-0200000000000000-00"}, 0, time.Time{}))
	}
}
