package tracing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Worker returns the configuration of a worker that makes spans for its deliveries:
//
//   - "drain <queue>", from the due time until the message became ready, by the clock of the Redis server. An entry
//     without a due time gets no such span.
//   - "process <queue>", for the run of the handler, with the outcome of the delivery. The handler's context carries
//     this span and the message's baggage. The span is linked to the span that scheduled the message and to the last
//     attempt.
//
// With cfg.Mux, each delivery has these spans, also each delivery of a batch. They begin outside the middleware of the
// mux. The result has a copy of the mux, so add all handlers before you call Worker.
//
// The worker still calls cfg.Settled and cfg.Retried, if they were set before the call of Worker. An attempt whose
// process was killed has no span. Spans that the exporter of a killed process had not sent are lost.
func Worker(cfg bridge.WorkerConfig, c Config) bridge.WorkerConfig {
	if c.Provider == nil || cfg.Handler == nil && cfg.Mux == nil {
		return cfg
	}
	w := &worker{
		tracer: newTracer(c), settled: cfg.Settled, retried: cfg.Retried,
		spans: map[string]queueSpans{cfg.Queue: newSpans(cfg.Queue, cfg.Group)},
	}
	for _, q := range cfg.Queues {
		w.spans[q.Queue] = newSpans(q.Queue, cfg.Group)
	}
	if cfg.Mux != nil {
		for _, queue := range cfg.Mux.Queues() {
			w.spans[queue] = newSpans(queue, cfg.Group)
		}
		cfg.Mux = cfg.Mux.With(w.wrap)
	}
	if cfg.Handler != nil {
		cfg.Handler = w.wrap(cfg.Handler)
	}
	cfg.Settled, cfg.Retried = w.onSettled, w.onRetried
	return cfg
}

type worker struct {
	*tracer
	settled func(*bridge.Message, bridge.Settlement)
	retried func(*bridge.Message, time.Duration, string)
	spans   map[string]queueSpans // by queue

	attempts sync.Map // *bridge.Message → *attempt: deliveries whose handler has returned, until they are settled
}

// queueSpans are the names and attributes of the spans of one queue. They are made once, not for each delivery.
type queueSpans struct {
	drainName, processName string
	drain, process         trace.SpanStartOption // attributes
}

func newSpans(queue, group string) queueSpans {
	return queueSpans{
		drainName: "drain " + queue, processName: "process " + queue,
		drain: operation(queue, "drain", semconv.MessagingConsumerGroupName(group)),
		process: operation(queue, "process", semconv.MessagingOperationTypeProcess,
			semconv.MessagingConsumerGroupName(group)),
	}
}

// attempt is one recorded delivery.
type attempt struct {
	span  trace.Span
	err   error
	text  string        // after a panic, the text that is recorded in place of that of err; otherwise ""
	ended time.Time     // when the handler returned
	delay time.Duration // until the next attempt
}

// errPanicked stands for a panic of the handler. Only package stream, which recovers it, knows its value.
var errPanicked = errors.New("the handler panicked, or ended its goroutine")

// wrap returns a handler that makes the spans of an attempt, and calls next.
func (w *worker) wrap(next bridge.Handler) bridge.Handler {
	return func(ctx context.Context, m *bridge.Message) (err error) {
		ctx, span := w.start(ctx, m)
		err = errPanicked
		defer func() { w.end(ctx, m, span, err) }()
		err = next(ctx, m)
		return err
	}
}

// start begins the span of an attempt.
func (w *worker) start(ctx context.Context, m *bridge.Message) (context.Context, trace.Span) {
	ctx = w.extract(ctx, m.Headers)
	origin := trace.SpanContextFromContext(ctx)
	var links []trace.Link
	isRoot := !w.parent || !origin.IsValid()
	if isRoot && origin.IsValid() {
		links = append(links, trace.Link{SpanContext: origin, Attributes: linkOrigin})
	}
	if last := lastAttempt(m); last.IsValid() {
		links = append(links, trace.Link{SpanContext: last, Attributes: linkLast})
	}
	spans, known := w.spans[m.Queue]
	if !known { // the handler was called with a message of a queue that its worker does not serve
		spans = newSpans(m.Queue, m.Group)
	}
	options := append(make([]trace.SpanStartOption, 0, 5), spans.process, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...))
	if drainCtx, ok := w.addDrain(ctx, m, spans, isRoot, links); ok {
		ctx = drainCtx
	} else if isRoot {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := w.Start(ctx, spans.processName, options...)
	if span.IsRecording() {
		describe(span, m)
	}
	return ctx, span
}

var (
	linkOrigin = []attribute.KeyValue{keyLink.String("origin")}
	linkLast   = []attribute.KeyValue{keyLink.String("last_attempt")}
)

// addDrain makes the span from due to ready, and returns the context for its children. It makes no span and returns
// false if the due time or the time of the entry is missing, or plainly not in milliseconds.
func (w *worker) addDrain(ctx context.Context, m *bridge.Message, spans queueSpans, isRoot bool,
	links []trace.Link) (context.Context, bool) {
	ready := lua.EntryTime(m.EntryID)
	if m.Due.Before(earliest) || ready.Before(earliest) || time.Until(ready) > time.Hour {
		return nil, false
	}
	options := append(make([]trace.SpanStartOption, 0, 5), spans.drain, trace.WithTimestamp(m.Due),
		trace.WithLinks(links...))
	if isRoot {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := w.Start(ctx, spans.drainName, options...)
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingMessageID(m.ID), keyAttempt.Int(m.Attempt), keyEntry.String(m.EntryID))
	}
	span.End(trace.WithTimestamp(m.Due.Add(m.Lateness())))
	return ctx, true
}

// earliest is the earliest plausible time in milliseconds. An earlier time is missing, or was written in seconds.
var earliest = time.UnixMilli(1e12)

// lastAttempt returns the span of the attempt before this one, which the entry carries in last_trace. The span is
// invalid if the entry has no such field.
func lastAttempt(m *bridge.Message) trace.SpanContext {
	parent := m.Extra[lua.FieldLastTrace]
	if parent == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), carrier{traceparent: parent})
	return trace.SpanContextFromContext(ctx)
}

// reclaimedPrefix begins the error that a bridge writes when it reclaims an abandoned delivery.
const reclaimedPrefix = "visibility timeout: not acknowledged within "

// describe sets the attributes of a delivery on its span.
func describe(span trace.Span, m *bridge.Message) {
	all := append(make([]attribute.KeyValue, 0, 8), semconv.MessagingMessageID(m.ID),
		semconv.MessagingMessageBodySize(len(m.Payload)), semconv.MessagingClientID(m.Consumer),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(m.Partition)), keyAttempt.Int(m.Attempt),
		keyEntry.String(m.EntryID), keyLateness.Float64(m.Lateness().Seconds()))
	if m.MaxAttempts > 0 {
		all = append(all, keyMaxAttempts.Int(m.MaxAttempts))
	}
	span.SetAttributes(all...)
	if strings.HasPrefix(m.Error, reclaimedPrefix) {
		span.AddEvent("duestream.reclaimed", trace.WithAttributes(keyError.String(lua.CutText(m.Error))))
	}
}

// end records that the handler returned or panicked. The span ends when the delivery is settled.
func (w *worker) end(ctx context.Context, m *bridge.Message, span trace.Span, err error) {
	if own := span.SpanContext(); err != nil && own.IsValid() && !own.IsRemote() {
		headers := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, headers)
		m.Trace = headers[traceparent] // the next attempt finds it in last_trace
	}
	if !span.IsRecording() {
		span.End()
		return
	}
	a := &attempt{span: span, err: err, ended: time.Now()}
	if s := interrupted(context.Cause(ctx), err); s != "" {
		a.settle(s)
		return
	}
	w.attempts.Store(m, a)
}

// Settlements of interrupted attempts, besides the settlements of package bridge.
const (
	stopping       bridge.Settlement = "stopping"
	handlerTimeout bridge.Settlement = "handler_timeout"
	unreachable    bridge.Settlement = "unreachable"
)

// interrupted returns the settlement for the cause that ended a handler's context. It returns "" if the worker is going
// to call Settled. After the causes below, Settled may not be called: a worker that stops may end before it has settled
// the delivery, and a worker that abandoned the handler may have settled the delivery already.
func interrupted(cause, err error) bridge.Settlement {
	switch {
	case errors.Is(cause, bridge.ErrStopping) && err != nil:
		return stopping
	case errors.Is(cause, bridge.ErrHandlerTimeout):
		return handlerTimeout
	case errors.Is(cause, bridge.ErrUnreachable):
		return unreachable
	case errors.Is(cause, bridge.ErrLost):
		return bridge.Lost
	case errors.Is(cause, bridge.ErrCancelled):
		return bridge.Cancelled
	}
	return ""
}

func (w *worker) onRetried(m *bridge.Message, delay time.Duration, err string) {
	if known, ok := w.attempts.Load(m); ok {
		a := known.(*attempt)
		a.delay = delay
		if errors.Is(a.err, errPanicked) {
			a.text, _, _ = strings.Cut(err, "\n")
		}
	}
	if w.retried != nil {
		w.retried(m, delay, err)
	}
}

func (w *worker) onSettled(m *bridge.Message, s bridge.Settlement) {
	if known, ok := w.attempts.LoadAndDelete(m); ok {
		known.(*attempt).settle(s)
	}
	if w.settled != nil {
		w.settled(m, s)
	}
}

// settle records on the span how the delivery ended. The span ends at the time when the handler returned.
func (a *attempt) settle(s bridge.Settlement) {
	a.span.SetAttributes(keySettlement.String(string(s)))
	if s == bridge.Lost {
		fail(a.span, bridge.ErrLost, "")
	} else if a.err != nil && countsAsError(s) {
		kind, text := fail(a.span, unwrapOutcome(a.err), a.text)
		a.span.AddEvent(semconv.ExceptionEventName, trace.WithTimestamp(a.ended),
			trace.WithAttributes(semconv.ExceptionType(kind), semconv.ExceptionMessage(text)))
	}
	switch s {
	case bridge.Acknowledged:
	case bridge.Retried:
		a.span.AddEvent("duestream.retried", trace.WithAttributes(keyDelay.Float64(a.delay.Seconds())))
	default:
		a.span.AddEvent("duestream." + string(s))
	}
	a.span.End(trace.WithTimestamp(a.ended))
}

// countsAsError reports whether the error of an attempt with this settlement is an error of the handler. The errors of
// the other settlements only put the message off.
func countsAsError(s bridge.Settlement) bool {
	return s != bridge.Released && s != bridge.Snoozed && s != stopping && s != unreachable
}

// unwrapOutcome returns the handler's own error, without the wrapping of RetryAfter or DeadLetter.
func unwrapOutcome(err error) error {
	for strings.HasPrefix(fmt.Sprintf("%T", err), "*stream.") && errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}
