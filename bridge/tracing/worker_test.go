package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// origin is the traceparent of the producer in most tests, and other is that of an earlier attempt. In both, characters
// 3 to 35 are the trace ID, and 36 to 52 the span ID.
const (
	origin = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	other  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

// memory returns a provider that keeps its spans in memory, and the exporter that holds them.
func memory(t testing.TB, options ...sdktrace.TracerProviderOption) (trace.TracerProvider, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	p := sdktrace.NewTracerProvider(append(options, sdktrace.WithSyncer(spans))...)
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return p, spans
}

// message returns a delivery that became ready about a second ago, 20 ms late.
func message(headers map[string]string) *bridge.Message {
	due := time.Now().Add(-time.Second).Truncate(time.Millisecond)
	return &bridge.Message{
		EntryID: strconv.FormatInt(due.UnixMilli()+20, 10) + "-0", ID: "m", Payload: []byte("four"), Attempt: 1, Due: due,
		Headers: headers, Queue: "orders", Group: "billing", Consumer: "me",
	}
}

// deliver calls the handler and the callbacks for a delivery, like a worker.
func deliver(cfg bridge.WorkerConfig, ctx context.Context, m *bridge.Message, s bridge.Settlement) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		err = cfg.Handler(ctx, m)
	}()
	<-done
	if s == bridge.Retried && cfg.Retried != nil {
		const delay = 1500 * time.Millisecond // shown as duestream.delay=1.5
		cfg.Retried(m, delay, "panic: boom\nstack")
	}
	if cfg.Settled != nil {
		cfg.Settled(m, s)
	}
	return err
}

// worker returns the configuration of a worker with tracing.
func worker(c tracing.Config, handler bridge.Handler) bridge.WorkerConfig {
	return tracing.Worker(bridge.WorkerConfig{Queue: "orders", Group: "billing", Handler: handler}, c)
}

// done is a handler that succeeds.
func done(context.Context, *bridge.Message) error { return nil }

// look returns the only span with a name.
func look(t *testing.T, spans *tracetest.InMemoryExporter, name string) tracetest.SpanStub {
	t.Helper()
	var found []tracetest.SpanStub
	for _, s := range spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %q among %d", len(found), name, len(spans.GetSpans()))
	}
	return found[0]
}

// line prints the links, events, kind and status of a span, in order.
func line(s tracetest.SpanStub) string {
	var b strings.Builder
	pairs := func(all []attribute.KeyValue) {
		all = slices.SortedFunc(slices.Values(all), func(a, b attribute.KeyValue) int {
			return strings.Compare(string(a.Key), string(b.Key))
		})
		for _, kv := range all {
			fmt.Fprintf(&b, " %s=%s", kv.Key, kv.Value.String())
		}
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "link %s-%s", l.SpanContext.TraceID(), l.SpanContext.SpanID())
		pairs(l.Attributes)
		b.WriteString("\n")
	}
	for _, e := range s.Events {
		fmt.Fprintf(&b, "event %s", e.Name)
		pairs(e.Attributes)
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%s %s", s.SpanKind, s.Status.Code)
	if s.Status.Description != "" {
		b.WriteString(": " + s.Status.Description)
	}
	return b.String()
}

func want(t *testing.T, what string, got, wanted any) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: got\n%v\nwant\n%v", what, got, wanted)
	}
}

// attributes returns the attributes of a span as texts.
func attributes(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, kv := range s.Attributes {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}

// Each attempt is a trace of its own, which begins at the due time and is linked to the producer's trace.
func TestAttemptIsATraceLinkedToTheProducers(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	var inside trace.SpanContext
	var carried string
	m := message(map[string]string{"traceparent": origin, "tracestate": "vendor=1", "baggage": "tenant=acme"})
	m.MaxAttempts = 7
	deliver(worker(tracing.Config{Provider: provider}, func(ctx context.Context, _ *bridge.Message) error {
		inside, carried = trace.SpanContextFromContext(ctx), baggage.FromContext(ctx).String()
		return nil
	}), t.Context(), m, bridge.Acknowledged)
	drain, process := look(t, spans, "drain orders"), look(t, spans, "process orders")
	want(t, "the handler's span", inside.SpanID(), process.SpanContext.SpanID())
	want(t, "the handler's baggage", carried, "tenant=acme")
	want(t, "drain", line(drain), "link 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331 duestream.link=origin\ninternal Unset")
	want(t, "process", line(process), "link 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331 duestream.link=origin\nconsumer Unset")
	want(t, "state of the link", process.Links[0].SpanContext.TraceState().String(), "vendor=1")
	want(t, "drain has a parent", drain.Parent.IsValid(), false)
	want(t, "parent of process is drain", process.Parent.SpanID(), drain.SpanContext.SpanID())
	want(t, "trace of both", process.SpanContext.TraceID(), drain.SpanContext.TraceID())
	if process.SpanContext.TraceID().String() == origin[3:35] {
		t.Error("the attempt is in the producer's trace")
	}
	want(t, "drain from", drain.StartTime.UnixMilli(), m.Due.UnixMilli())
	want(t, "drain for", drain.EndTime.Sub(drain.StartTime), 20*time.Millisecond)
	want(t, "attributes", fmt.Sprint(attributes(process)), fmt.Sprint(map[string]string{
		"messaging.system": "duestream", "messaging.destination.name": "orders", "messaging.consumer.group.name": "billing",
		"messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.message.id": "m",
		"messaging.message.body.size": "4", "messaging.client.id": "me", "messaging.destination.partition.id": "0",
		"duestream.attempt": "1", "duestream.max_attempts": "7", "duestream.entry": m.EntryID, "duestream.lateness": "0.02",
		"duestream.settlement": "acknowledged",
	}))
}

// With Config.Parent attempts continue the producer's trace.
func TestAttemptContinuesTheProducersTraceByChoice(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	m := message(map[string]string{"traceparent": origin})
	m.Extra = map[string]string{lua.FieldLastTrace: other}
	deliver(worker(tracing.Config{Provider: provider, Parent: true}, done), t.Context(), m, bridge.Acknowledged)
	drain, process := look(t, spans, "drain orders"), look(t, spans, "process orders")
	want(t, "trace", process.SpanContext.TraceID().String(), origin[3:35])
	want(t, "parent of drain", drain.Parent.SpanID().String(), origin[36:52])
	want(t, "parent of process", process.Parent.SpanID(), drain.SpanContext.SpanID())
	want(t, "links", line(process), "link "+other[3:52]+" duestream.link=last_attempt\nconsumer Unset")
}

// A message without trace headers begins a new trace, even if the worker runs inside a span of its program.
func TestMessageWithoutATraceBeginsOne(t *testing.T) {
	t.Parallel()
	for _, parent := range []bool{false, true} {
		provider, spans := memory(t)
		ctx, running := provider.Tracer("program").Start(t.Context(), "main")
		ctx = baggage.ContextWithBaggage(ctx, must(baggage.Parse("of=main")))
		var carried int
		milliseconds, none, seconds, infinitely := message(nil).Due, time.Time{}, time.UnixMilli(1_700_000_000), time.UnixMilli(0)
		for _, due := range []time.Time{milliseconds, none, seconds, infinitely} {
			m := message(nil)
			m.Due = due
			spans.Reset()
			c := tracing.Config{Provider: provider, Parent: parent}
			deliver(worker(c, func(ctx context.Context, _ *bridge.Message) error {
				carried = baggage.FromContext(ctx).Len()
				return nil
			}), ctx, m, bridge.Acknowledged)
			first := look(t, spans, "process orders")
			if due.UnixMilli() > 1e12 {
				first = look(t, spans, "drain orders")
			} else if n := len(spans.GetSpans()); n != 1 {
				t.Errorf("due %v: %d spans", due, n)
			}
			want(t, "parent", first.Parent.IsValid(), false)
			want(t, "links", len(first.Links), 0)
			want(t, "baggage", carried, 0)
			if first.SpanContext.TraceID() == running.SpanContext().TraceID() {
				t.Error("the attempt is in the trace of the program")
			}
		}
		running.End()
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// The span of a delivery tells how it ended, for every settlement. It ends once, with the time when the handler
// returned.
func TestEveryWayOutEndsTheSpan(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	stopping, stop := context.WithCancelCause(context.Background())
	stop(bridge.ErrStopping)
	cancelled := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		return ctx
	}
	late := cancelled(bridge.ErrHandlerTimeout)
	const failed = "event exception exception.message=no exception.type=*errors.errorString\n"
	for _, c := range []struct {
		name    string
		ctx     context.Context
		handler bridge.Handler
		settled bridge.Settlement
		want    string
		kind    string // error.type
		told    bool   // the next attempt gets this one's traceparent
	}{
		{"done", nil, done, bridge.Acknowledged, "consumer Unset", "", false},
		{"failed", nil, func(context.Context, *bridge.Message) error { return no }, bridge.Retried,
			failed + "event duestream.retried duestream.delay=1.5\nconsumer Error: no", "*errors.errorString", true},
		{"later", nil, func(context.Context, *bridge.Message) error { return bridge.RetryAfter(time.Hour, no) }, bridge.Retried,
			failed + "event duestream.retried duestream.delay=1.5\nconsumer Error: no", "*errors.errorString", true},
		{"given up", nil, func(context.Context, *bridge.Message) error { return bridge.DeadLetter(no) }, bridge.Dead,
			failed + "event duestream.dead\nconsumer Error: no", "*errors.errorString", true},
		{"stuck", nil, func(context.Context, *bridge.Message) error { return bridge.DeadLetter(no) }, bridge.Stuck,
			failed + "event duestream.stuck\nconsumer Error: no", "*errors.errorString", true},
		{"given back", nil, func(context.Context, *bridge.Message) error { return bridge.Release(nil) }, bridge.Released,
			"event duestream.released\nconsumer Unset", "", true},
		{"too late", late, func(context.Context, *bridge.Message) error { return no }, bridge.Retried,
			failed + "event duestream.handler_timeout\nconsumer Error: no", "*errors.errorString", true},
		{"cut short", stopping, func(context.Context, *bridge.Message) error { return no }, bridge.Released,
			"event duestream.stopping\nconsumer Unset", "", true},
		{"done all the same", stopping, done, bridge.Acknowledged, "consumer Unset", "", false},
		{"lost", nil, done, bridge.Lost, "event duestream.lost\nconsumer Error: " + bridge.ErrLost.Error(), "lost", false},
		{"failed and lost", nil, func(context.Context, *bridge.Message) error { return no }, bridge.Lost,
			"event duestream.lost\nconsumer Error: " + bridge.ErrLost.Error(), "lost", true},
		{"lost while it ran", cancelled(bridge.ErrLost), done, bridge.Lost,
			"event duestream.lost\nconsumer Error: " + bridge.ErrLost.Error(), "lost", false},
		{"cancelled while it ran", cancelled(bridge.ErrCancelled), done, bridge.Cancelled,
			"event duestream.cancelled\nconsumer Unset", "", false},
		{"unreachable while it ran", cancelled(bridge.ErrUnreachable),
			func(context.Context, *bridge.Message) error { return no }, bridge.Released,
			"event duestream.unreachable\nconsumer Unset", "", true},
		{"unknown", nil, done, bridge.Unknown, "event duestream.unknown\nconsumer Unset", "", false},
		{"panic", nil, func(context.Context, *bridge.Message) error { panic("boom") }, bridge.Retried,
			"event exception exception.message=panic: boom exception.type=panic\n" +
				"event duestream.retried duestream.delay=1.5\nconsumer Error: panic: boom", "panic", true},
		{"goexit", nil, func(context.Context, *bridge.Message) error { runtime.Goexit(); return nil }, bridge.Dead,
			"event exception exception.message=the handler panicked, or ended its goroutine exception.type=panic\n" +
				"event duestream.dead\nconsumer Error: the handler panicked, or ended its goroutine", "panic", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			provider, spans := memory(t)
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			var settled []bridge.Settlement
			cfg := tracing.Worker(bridge.WorkerConfig{Queue: "orders", Handler: c.handler,
				Settled: func(_ *bridge.Message, s bridge.Settlement) { settled = append(settled, s) }},
				tracing.Config{Provider: provider})
			m := message(nil)
			deliver(cfg, ctx, m, c.settled)
			process := look(t, spans, "process orders")
			want(t, "span", line(process), c.want)
			want(t, "error.type", attributes(process)["error.type"], c.kind)
			want(t, "the other observer", fmt.Sprint(settled), fmt.Sprint([]bridge.Settlement{c.settled}))
			told := ""
			if c.told {
				told = fmt.Sprintf("00-%s-%s-01", process.SpanContext.TraceID(), process.SpanContext.SpanID())
			}
			want(t, "trace", m.Trace, told)
			cfg.Settled(m, c.settled) // a second call has no effect
			look(t, spans, "process orders")
		})
	}
}

// The worker keeps nothing of a delivery that was settled or cut short.
func TestSettledDeliveriesAreForgotten(t *testing.T) {
	t.Parallel()
	provider, _ := memory(t)
	cfg := worker(tracing.Config{Provider: provider}, func(context.Context, *bridge.Message) error { return errors.New("no") })
	var forgotten atomic.Int32
	stopping, stop := context.WithCancelCause(context.Background())
	stop(bridge.ErrStopping)
	for _, ctx := range []context.Context{t.Context(), stopping} {
		m := message(nil)
		runtime.AddCleanup(m, func(int) { forgotten.Add(1) }, 0)
		deliver(cfg, ctx, m, bridge.Retried)
	}
	// An abandoned handler returns after its delivery was settled, so Settled is not called any more. Another
	// cause than the handler timeout may have cancelled its context before.
	for _, cause := range []error{bridge.ErrHandlerTimeout, bridge.ErrLost, bridge.ErrUnreachable, bridge.ErrCancelled} {
		late, end := context.WithCancelCause(context.Background())
		end(cause)
		m := message(nil)
		runtime.AddCleanup(m, func(int) { forgotten.Add(1) }, 0)
		_ = cfg.Handler(late, m)
	}
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		runtime.GC()
		return forgotten.Load() == 6, fmt.Sprint(forgotten.Load(), " of 6 deliveries are forgotten")
	})
	runtime.KeepAlive(cfg)
}

// A retry is linked to the attempt before it. After a dead worker its span has an event that the delivery was
// reclaimed.
func TestRetryIsLinkedToTheLastAttempt(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	m := message(map[string]string{"traceparent": origin})
	m.Attempt, m.Extra = 3, map[string]string{lua.FieldLastTrace: other}
	m.Error = "visibility timeout: not acknowledged within 30000 ms"
	deliver(worker(tracing.Config{Provider: provider}, done), t.Context(), m, bridge.Acknowledged)
	want(t, "span", line(look(t, spans, "process orders")), "link "+origin[3:52]+" duestream.link=origin\n"+
		"link "+other[3:52]+" duestream.link=last_attempt\n"+
		"event duestream.reclaimed duestream.error=visibility timeout: not acknowledged within 30000 ms\nconsumer Unset")
}

// Without a provider, Worker does not even change the configuration.
func TestWithoutProviderNothingIsDone(t *testing.T) {
	cfg, ctx := worker(tracing.Config{}, done), t.Context()
	if cfg.Settled != nil || cfg.Retried != nil {
		t.Error("the worker is observed")
	}
	m := message(map[string]string{"traceparent": origin})
	if n := testing.AllocsPerRun(100, func() { _ = cfg.Handler(ctx, m) }); n != 0 || m.Trace != "" {
		t.Errorf("%v allocations, trace %q", n, m.Trace)
	}
}

// With a provider that records nothing, the handler still gets the message's trace and baggage.
func TestProviderThatRecordsNothingPassesTracesOn(t *testing.T) {
	t.Parallel()
	m := message(map[string]string{"traceparent": origin, "baggage": "tenant=acme"})
	m.Extra = map[string]string{lua.FieldLastTrace: other}
	deliver(worker(tracing.Config{Provider: noop.NewTracerProvider()}, func(ctx context.Context, _ *bridge.Message) error {
		want(t, "trace", trace.SpanContextFromContext(ctx).SpanID().String(), origin[36:52])
		want(t, "baggage", baggage.FromContext(ctx).String(), "tenant=acme")
		return errors.New("no")
	}), t.Context(), m, bridge.Retried)
	want(t, "trace for the next attempt, of an attempt without a span", m.Trace, "")
}

// A span that is not sampled gets no attributes, but the next attempt is still linked to it.
func TestAttemptThatIsNotSampled(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t, sdktrace.WithSampler(sdktrace.NeverSample()))
	m := message(nil)
	deliver(worker(tracing.Config{Provider: provider}, func(context.Context, *bridge.Message) error { return errors.New("no") }),
		t.Context(), m, bridge.Retried)
	want(t, "spans", len(spans.GetSpans()), 0)
	if len(m.Trace) != 55 || !strings.HasSuffix(m.Trace, "-00") {
		t.Errorf("trace %q", m.Trace)
	}
}

// sampler records what a sampler sees: destination, operation and links.
type sampler struct{ seen []sdktrace.SamplingParameters }

func (s *sampler) Description() string { return "" }

func (s *sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	s.seen = append(s.seen, p)
	return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
}

// A sampler can decide by the queue and by the links of a span, so both are given when the span begins.
func TestSamplerSeesQueueAndLinks(t *testing.T) {
	t.Parallel()
	s := &sampler{}
	provider, _ := memory(t, sdktrace.WithSampler(s))
	m := message(map[string]string{"traceparent": origin})
	deliver(worker(tracing.Config{Provider: provider}, done), t.Context(), m, bridge.Acknowledged)
	for i, name := range []string{"drain", "process"} {
		p := s.seen[i]
		want(t, "name", p.Name, name+" orders")
		want(t, "links", len(p.Links), 1)
		want(t, "queue", slices.Contains(p.Attributes, attribute.String("messaging.destination.name", "orders")), true)
	}
}

// An implausible time, from a wrong clock or a foreign entry, makes no drain span.
func TestEntryFromTheFutureHasNoDrainSpan(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"99999999999999-1", "0-1", "", "x", "-", "18446744073709551615-18446744073709551615"} {
		provider, spans := memory(t)
		m := message(nil)
		m.EntryID = entry
		deliver(worker(tracing.Config{Provider: provider}, done), t.Context(), m, bridge.Acknowledged)
		want(t, entry, len(spans.GetSpans()), 1)
	}
	provider, spans := memory(t)
	m := message(nil)
	m.Due = m.Due.Add(time.Second) // by its entry ID the message was ready before its due time
	deliver(worker(tracing.Config{Provider: provider}, done), t.Context(), m, bridge.Acknowledged)
	drain := look(t, spans, "drain orders")
	want(t, "length", drain.EndTime.Sub(drain.StartTime), time.Duration(0))
	want(t, "status", drain.Status.Code, codes.Unset)
}

// Regression: a worker of several queues named its spans after none of these queues.
func TestSpansAreNamedAfterTheQueueOfTheirMessage(t *testing.T) {
	t.Parallel()
	provider, spans := memory(t)
	queues := []bridge.WorkerQueue{{Queue: "mails"}, {Queue: "orders"}}
	cfg := tracing.Worker(bridge.WorkerConfig{Queues: queues, Group: "billing", Handler: done},
		tracing.Config{Provider: provider})
	if err := deliver(cfg, t.Context(), message(nil), bridge.Acknowledged); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"drain orders", "process orders"} {
		got := look(t, spans, name).Attributes
		if !slices.Contains(got, attribute.String("messaging.destination.name", "orders")) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
