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

// Worker returns the configuration of a worker that makes spans of its deliveries:
//
//   - "drain <queue>", from the due time until the message was ready, by the clock of the Redis server; none where an entry does
//     not say when it was due;
//   - "process <queue>", for as long as the handler runs, with what came of it: the context that the handler gets is in it, and
//     has the message's baggage. It is linked to the span that scheduled the message and to the last attempt.
//
// Settled and Retried are called as before; whoever sets them does so before this. An attempt whose process was killed has no
// span, as any that its exporter had not sent.
func Worker(cfg bridge.WorkerConfig, c Config) bridge.WorkerConfig {
	if c.Provider == nil || cfg.Handler == nil {
		return cfg
	}
	w := &worker{
		tracer: newTracer(c), next: cfg.Handler, settled: cfg.Settled, retried: cfg.Retried,
		spans: map[string]spans{cfg.Queue: newSpans(cfg.Queue, cfg.Group)},
	}
	for _, q := range cfg.Queues {
		w.spans[q.Queue] = newSpans(q.Queue, cfg.Group)
	}
	cfg.Handler, cfg.Settled, cfg.Retried = w.handle, w.onSettled, w.onRetried
	return cfg
}

type worker struct {
	*tracer
	next    bridge.Handler
	settled func(*bridge.Message, bridge.Settlement)
	retried func(*bridge.Message, time.Duration, string)
	spans   map[string]spans // by queue

	attempts sync.Map // *bridge.Message → *attempt: the handler returned, and the delivery is not settled yet
}

// spans are the names and attributes of the spans of one queue. They are made once, not for each delivery.
type spans struct {
	drain, process     string // names
	ofDrain, ofProcess trace.SpanStartOption
}

func newSpans(queue, group string) spans {
	return spans{
		drain: "drain " + queue, process: "process " + queue,
		ofDrain: operation(queue, "drain", semconv.MessagingConsumerGroupName(group)),
		ofProcess: operation(queue, "process", semconv.MessagingOperationTypeProcess,
			semconv.MessagingConsumerGroupName(group)),
	}
}

// attempt is one delivery that is recorded.
type attempt struct {
	span  trace.Span
	err   error
	text  string        // of err, when it is none of the handler's
	ended time.Time     // the handler
	delay time.Duration // until the next one
}

// errPanicked stands for what only the worker knows: it recovers panics.
var errPanicked = errors.New("the handler panicked, or ended its goroutine")

func (w *worker) handle(ctx context.Context, m *bridge.Message) (err error) {
	ctx, span := w.start(ctx, m)
	err = errPanicked
	defer func() { w.end(ctx, m, span, err) }()
	err = w.next(ctx, m)
	return err
}

// start begins the span of an attempt.
func (w *worker) start(ctx context.Context, m *bridge.Message) (context.Context, trace.Span) {
	ctx = w.extract(ctx, m.Headers)
	origin := trace.SpanContextFromContext(ctx)
	var links []trace.Link
	root := !w.parent || !origin.IsValid()
	if root && origin.IsValid() {
		links = append(links, trace.Link{SpanContext: origin, Attributes: linkOrigin})
	}
	if last := lastAttempt(m); last.IsValid() {
		links = append(links, trace.Link{SpanContext: last, Attributes: linkLast})
	}
	own, known := w.spans[m.Queue]
	if !known { // a message that no worker of this configuration was given
		own = newSpans(m.Queue, m.Group)
	}
	options := append(make([]trace.SpanStartOption, 0, 5), own.ofProcess, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...))
	if drained, ok := w.drained(ctx, m, own, root, links); ok {
		ctx = drained
	} else if root {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := w.Start(ctx, own.process, options...)
	if span.IsRecording() {
		describe(span, m)
	}
	return ctx, span
}

var (
	linkOrigin = []attribute.KeyValue{keyLink.String("origin")}
	linkLast   = []attribute.KeyValue{keyLink.String("last_attempt")}
)

// drained makes the span from due to ready, and returns the context of its children.
func (w *worker) drained(ctx context.Context, m *bridge.Message, own spans, root bool,
	links []trace.Link) (context.Context, bool) {
	ready := lua.EntryTime(m.EntryID)
	if m.Due.Before(earliest) || ready.Before(earliest) || time.Until(ready) > time.Hour {
		return nil, false
	}
	options := append(make([]trace.SpanStartOption, 0, 5), own.ofDrain, trace.WithTimestamp(m.Due), trace.WithLinks(links...))
	if root {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := w.Start(ctx, own.drain, options...)
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingMessageID(m.ID), keyAttempt.Int(m.Attempt), keyEntry.String(m.EntryID))
	}
	span.End(trace.WithTimestamp(m.Due.Add(m.Lateness())))
	return ctx, true
}

// earliest is before any due time in milliseconds: what is before it are seconds, or no due time at all.
var earliest = time.UnixMilli(1e12)

// lastAttempt is what the entry says of an attempt before this one.
func lastAttempt(m *bridge.Message) trace.SpanContext {
	told := m.Extra[lua.FieldLastTrace]
	if told == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier{traceparent: told}))
}

// reclaimed is how the error of an attempt begins that a bridge ended, because its worker gave no sign of life.
const reclaimed = "visibility timeout: not acknowledged within "

// describe says on a span which delivery it is.
func describe(span trace.Span, m *bridge.Message) {
	all := append(make([]attribute.KeyValue, 0, 8), semconv.MessagingMessageID(m.ID),
		semconv.MessagingMessageBodySize(len(m.Payload)), semconv.MessagingClientID(m.Consumer),
		semconv.MessagingDestinationPartitionID(strconv.Itoa(m.Partition)), keyAttempt.Int(m.Attempt),
		keyEntry.String(m.EntryID), keyLateness.Float64(m.Lateness().Seconds()))
	if m.MaxAttempts > 0 {
		all = append(all, keyMost.Int(m.MaxAttempts))
	}
	span.SetAttributes(all...)
	if strings.HasPrefix(m.Error, reclaimed) {
		span.AddEvent("duestream.reclaimed", trace.WithAttributes(keyError.String(lua.CutText(m.Error))))
	}
}

// end is when the handler returned, or panicked. What came of the delivery is not known yet.
func (w *worker) end(ctx context.Context, m *bridge.Message, span trace.Span, err error) {
	if own := span.SpanContext(); err != nil && own.IsValid() && !own.IsRemote() {
		told := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, told)
		m.Trace = told[traceparent]
	}
	if !span.IsRecording() {
		span.End()
		return
	}
	a := &attempt{span: span, err: err, ended: time.Now()}
	if err != nil && errors.Is(context.Cause(ctx), bridge.ErrStopping) {
		a.settle("stopping") // the worker may end before it can settle this
		return
	}
	if errors.Is(context.Cause(ctx), bridge.ErrHandlerTimeout) {
		a.settle("handler_timeout") // the worker may have settled the delivery before the handler returned, and tells nothing more
		return
	}
	w.attempts.Store(m, a)
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

// settle says on the span how the delivery ended, and ends it at the time when the handler did.
func (a *attempt) settle(s bridge.Settlement) {
	a.span.SetAttributes(keySettlement.String(string(s)))
	if s == bridge.Lost {
		fail(a.span, bridge.ErrLost, "")
	} else if a.err != nil && s != bridge.Released && s != bridge.Snoozed && s != "stopping" {
		kind, text := fail(a.span, plain(a.err), a.text)
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

// plain returns what a handler has wrapped to say what is to be done (RetryAfter, DeadLetter).
func plain(err error) error {
	for strings.HasPrefix(fmt.Sprintf("%T", err), "*stream.") && errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}
