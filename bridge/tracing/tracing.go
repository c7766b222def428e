package tracing

import (
	"cmp"
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Config configures tracing. The zero value switches it off.
type Config struct {
	// Provider makes the spans. Usually the program's exporter is attached to it. nil = off: no header is read or
	// written. With noop.NewTracerProvider() traces and baggage pass through this program, but it makes no spans.
	Provider trace.TracerProvider

	// Propagator reads and writes the headers of messages. nil = W3C trace context and baggage.
	Propagator propagation.TextMapPropagator

	// Parent continues the producer's trace across the delay: deliveries become children of the span that scheduled
	// the message. Otherwise each attempt is a trace of its own, with a link to the producer's. Most collectors,
	// samplers and viewers cannot handle a trace that continues after days.
	Parent bool
}

// Names and attributes that OpenTelemetry's semantic conventions do not define.
const (
	scope  = "github.com/duestream/duestream/bridge/tracing"
	system = "duestream"

	keyLink        = attribute.Key("duestream.link")    // of a link: origin or last_attempt
	keyAttempt     = attribute.Key("duestream.attempt") // from 1
	keyMaxAttempts = attribute.Key("duestream.max_attempts")
	keyEntry       = attribute.Key("duestream.entry")      // ID of the entry in the stream
	keyLateness    = attribute.Key("duestream.lateness")   // seconds from due to ready
	keySettlement  = attribute.Key("duestream.settlement") // how the delivery ended
	keyDelay       = attribute.Key("duestream.delay")      // seconds until the next attempt
	keyError       = attribute.Key("duestream.error")      // error text of the last attempt
	keyDue         = attribute.Key("duestream.due_ms")     // Unix time in milliseconds
	keyReady       = attribute.Key("duestream.ready")      // whether the message became ready at once
	keyRefused     = attribute.Key("duestream.refused")    // number of refused messages in a batch
)

// tracer makes the spans of one client or worker.
type tracer struct {
	trace.Tracer
	propagator propagation.TextMapPropagator
	parent     bool
}

func newTracer(c Config) *tracer {
	t := c.Provider.Tracer(scope, trace.WithInstrumentationVersion(bridge.NewIdentity("").Version),
		trace.WithSchemaURL(semconv.SchemaURL))
	if c.Propagator == nil {
		c.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	return &tracer{t, c.Propagator, c.Parent}
}

// operation returns the attributes that all spans of an operation have from their start, so that samplers see them.
func operation(queue, name string, more ...attribute.KeyValue) trace.SpanStartOption {
	return trace.WithAttributes(append([]attribute.KeyValue{
		semconv.MessagingSystemKey.String(system), semconv.MessagingDestinationName(queue), semconv.MessagingOperationName(name),
	}, more...)...)
}

// fail records an error on a span, and returns the kind and the text that it recorded. If replacement is not empty, it
// is recorded in place of the error's own text.
func fail(span trace.Span, err error, replacement string) (kind, text string) {
	kind, text = kindOf(err), lua.CutText(cmp.Or(replacement, err.Error()))
	span.SetStatus(codes.Error, text)
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	return kind, text
}

// kinds are the names of known errors. The kind of any other error is the name of its type.
var kinds = []struct {
	err  error
	name string
}{
	{bridge.ErrInvalid, "invalid"}, {bridge.ErrDuplicate, "duplicate"}, {bridge.ErrFull, "full"},
	{bridge.ErrNotDurable, "not_durable"}, {bridge.ErrUnsupported, "unsupported"}, {bridge.ErrDenied, "denied"},
	{bridge.ErrUntrusted, "untrusted"}, {bridge.ErrWrongType, "wrong_type"}, {bridge.ErrUnavailable, "unavailable"},
	{bridge.ErrUncertain, "uncertain"}, {bridge.ErrClosed, "closed"}, {bridge.ErrLost, "lost"}, {errPanicked, "panic"},
	{context.DeadlineExceeded, "timeout"}, {context.Canceled, "cancelled"},
}

func kindOf(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return semconv.ErrorType(err).Value.AsString()
}
