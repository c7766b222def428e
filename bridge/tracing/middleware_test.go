package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
)

// Typed kinds must have the same spans as other messages, on both sides, also in batches. Regression: Worker left a
// configuration with a Mux unchanged, so its deliveries had no spans.
func TestTypedKindsAreTraced(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	serve(t, r, prefix)
	provider, spans := memory(t)
	config := tracing.Config{Provider: provider}
	c := redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Middleware: []bridge.SendMiddleware{tracing.SendMiddleware(config)}}))
	closeOrder := bridge.Kind[int]{Name: "close-order", Queue: "orders"}
	mail := bridge.Kind[int]{Name: "mail", Queue: "mails"}
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[int]) error { return nil })
	mail.HandleBatch(mux, bridge.BatchConfig{Size: 2, Age: time.Minute},
		func(_ context.Context, all []*bridge.Delivery[int]) []error { return make([]error, len(all)) })
	w := redistest.Must(bridge.NewWorker(tracing.Worker(
		bridge.WorkerConfig{Redis: r, Prefix: prefix, Group: "shop", Mux: mux}, config)))
	run(t, w.Run)
	redistest.Must(closeOrder.Schedule(t.Context(), c, 42, bridge.WithID("a")))
	redistest.Must(mail.Schedule(t.Context(), c, 42, bridge.WithID("b")))
	redistest.Must(mail.Schedule(t.Context(), c, 43, bridge.WithID("c")))
	counts := map[string]int{}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		clear(counts)
		for _, span := range spans.GetSpans() {
			counts[span.Name]++
		}
		return counts["process orders"] == 1 && counts["process mails"] == 2, fmt.Sprint(counts)
	})
	want(t, "spans of sends", fmt.Sprint(counts["schedule orders"], counts["schedule mails"]), "1 2")
	sent, handled := look(t, spans, "schedule orders"), look(t, spans, "process orders")
	want(t, "ID of the sent message", attributes(sent)["messaging.message.id"], "a")
	want(t, "trace to which the delivery is linked", handled.Links[0].SpanContext.SpanID(), sent.SpanContext.SpanID())
}

// The middleware must pass on what the next sender returns, for one message and for several.
func TestSendMiddlewarePassesResultsOn(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	errAway := errors.New("away")
	var results []bridge.Result
	var failed error
	send := tracing.SendMiddleware(tracing.Config{Provider: provider})(
		func(context.Context, string, []bridge.NewMessage) ([]bridge.Result, error) { return results, failed })
	duplicate := bridge.Result{Err: bridge.ErrDuplicate}
	for n := range 3 {
		for _, failed = range []error{nil, errAway} {
			if results = nil; failed == nil {
				results = []bridge.Result{duplicate, duplicate}[:n]
			}
			got, err := send(t.Context(), "orders", make([]bridge.NewMessage, n))
			want(t, "results", fmt.Sprint(got, err), fmt.Sprint(results, failed))
		}
	}
	want(t, "spans", len(spans.GetSpans()), 6)
	off := tracing.SendMiddleware(tracing.Config{})
	called := false
	if _, err := off(func(context.Context, string, []bridge.NewMessage) ([]bridge.Result, error) {
		called = true
		return nil, nil
	})(t.Context(), "orders", nil); err != nil || !called {
		t.Error("without a provider: ", called, err)
	}
}
