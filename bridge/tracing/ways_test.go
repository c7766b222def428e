package tracing_test

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// If a worker stops before its handler returns, the span of the attempt is sent before the process ends, and the next
// attempt is linked to that span. If a worker acknowledges a delivery that another worker has settled, the span says
// that the delivery was lost.
func TestStoppedAndLostAttemptsAreTold(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	serve(t, r, prefix)
	provider, spans := memory(t)
	if _, err := newClient(t, r, prefix).Schedule(t.Context(), "orders", nil, bridge.Header("traceparent", origin)); err != nil {
		t.Fatal(err)
	}
	begun, settled := make(chan *bridge.Message, 1), make(chan bridge.Settlement, 1)
	startWorker := func(handler func(ctx context.Context) error) (stop func()) {
		w, err := bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
			ShutdownTimeout: -1, Settled: func(_ *bridge.Message, s bridge.Settlement) { settled <- s },
			Handler: func(ctx context.Context, m *bridge.Message) error {
				begun <- m
				return handler(ctx)
			}}, tracing.Config{Provider: provider}))
		if err != nil {
			t.Fatal(err)
		}
		return run(t, w.Run)
	}
	stop := startWorker(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	<-begun
	stop()
	redistest.Want(t, "settled", <-settled, bridge.Released)
	first := look(t, spans, "process orders")
	want(t, "stopped", line(first), "link "+origin[3:52]+" duestream.link=origin\nevent duestream.stopping\nconsumer Unset")

	spans.Reset()
	taken := make(chan struct{})
	stop = startWorker(func(context.Context) error {
		<-taken
		return nil
	})
	m := <-begun
	want(t, "attempt", m.Attempt, 1) // the attempt that was released when its worker stopped is not counted
	// Acknowledge the entry behind the worker's back, as if another worker had reclaimed and settled it.
	xack := r.Client.B().Xack().Key(lua.NewKeys(prefix, "orders").Stream).Group("billing").Id(m.EntryID).Build()
	if err := r.Client.Do(t.Context(), xack).Error(); err != nil {
		t.Fatal(err)
	}
	close(taken)
	redistest.Want(t, "settled", <-settled, bridge.Lost)
	want(t, "lost", line(look(t, spans, "process orders")), "link "+origin[3:52]+" duestream.link=origin\nlink "+
		first.SpanContext.TraceID().String()+"-"+first.SpanContext.SpanID().String()+" duestream.link=last_attempt\n"+
		"event duestream.lost\nconsumer Error: "+bridge.ErrLost.Error())
	stop()
}

// Regression: if a handler returned nil after its worker had stopped, the span of the attempt never ended and stayed in
// memory.
func TestHandlerThatIsLeftBehindEndsItsSpan(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	serve(t, r, prefix)
	provider, spans := memory(t)
	if _, err := newClient(t, r, prefix).Schedule(t.Context(), "orders", nil); err != nil {
		t.Fatal(err)
	}
	begun, late, settled := make(chan struct{}, 1), make(chan struct{}), make(chan bridge.Settlement, 1)
	w, err := bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		ShutdownTimeout: -1, CancelGrace: time.Millisecond,
		Settled: func(_ *bridge.Message, s bridge.Settlement) { settled <- s },
		Handler: func(context.Context, *bridge.Message) error {
			begun <- struct{}{}
			<-late
			return nil
		}}, tracing.Config{Provider: provider}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-begun
	stop()
	if err := <-done; err == nil {
		t.Error("the handler was not left behind")
	}
	close(late)
	select {
	case s := <-settled:
		redistest.Want(t, "settled", s, bridge.Unknown)
	case <-time.After(30 * time.Second):
		t.Fatal("nobody is told how it ended")
	}
	want(t, "left behind", line(look(t, spans, "process orders")), "event duestream.unknown\nconsumer Unset")
}
