package tracing_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
)

// A message is scheduled in a span, fails once, and is acknowledged. A real program gives the provider an exporter.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	url, prefix, giveBack := redistest.Lend()
	defer giveBack()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	defer func() { _ = provider.Shutdown(ctx) }()
	config := tracing.Config{Provider: provider}

	r := must(bridge.Dial(ctx, url))
	defer r.Close()
	plain := must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix}))
	client := must(tracing.NewClient(plain, config))
	defer client.Close()
	must(client.Schedule(ctx, "orders", []byte("charge 9.99"), bridge.In(50*time.Millisecond)))

	ctx, stop := context.WithCancel(ctx)
	worker := must(bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Handler: func(ctx context.Context, m *bridge.Message) error {
			if m.Attempt == 1 { // ctx holds the span: whatever the handler calls with it is in the trace
				return bridge.RetryAfter(0, errors.New("the card was declined"))
			}
			return nil
		},
		Settled: func(_ *bridge.Message, s bridge.Settlement) {
			if s == bridge.Acknowledged {
				stop()
			}
		},
	}, config)))
	b := must(bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, AnyServer: true}))
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	_ = worker.Run(ctx)
	running.Wait()

	names, spans := map[string]string{}, exporter.GetSpans()
	for _, s := range spans {
		names[s.SpanContext.SpanID().String()] = s.Name
	}
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return cmp.Compare(attempt(a), attempt(b)) })
	for _, s := range spans {
		fmt.Print(s.Name, ", ", s.SpanKind, ", ", s.Status.Code)
		for _, l := range s.Links {
			fmt.Print(", linked to ", names[l.SpanContext.SpanID().String()])
		}
		fmt.Println()
	}
	// Output:
	// schedule orders, producer, Unset
	// drain orders, internal, Unset, linked to schedule orders
	// process orders, consumer, Error, linked to schedule orders
	// drain orders, internal, Unset, linked to schedule orders, linked to process orders
	// process orders, consumer, Unset, linked to schedule orders, linked to process orders
}

// attempt returns the attempt of a span. Spans arrive in the order of their ends. The span of an attempt ends when the
// delivery is settled, and by then the next attempt may have begun.
func attempt(s tracetest.SpanStub) int64 {
	for _, a := range s.Attributes {
		if a.Key == "duestream.attempt" {
			return a.Value.AsInt64()
		}
	}
	return 0
}
