package tracing

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/lua"
)

const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// carrier gives a propagator the headers of a message, except values that are longer than duestream's clients write.
// Parsing such values would take time, and W3C does not demand it.
type carrier map[string]string

func (c carrier) Get(name string) string {
	if value := c[name]; len(value) <= lua.MaxHeaderValueBytes {
		return value
	}
	return ""
}

func (c carrier) Set(string, string) {}

func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// extract returns a context with the trace and baggage in a message's headers. A malformed or too large header is
// ignored.
func (t *tracer) extract(ctx context.Context, headers map[string]string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() { // the span of the worker's context is not the message's
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	if baggage.FromContext(ctx).Len() > 0 {
		ctx = baggage.ContextWithoutBaggage(ctx)
	}
	if len(headers) == 0 {
		return ctx
	}
	return t.propagator.Extract(ctx, carrier(headers))
}

// inject returns the trace and baggage of the context as headers.
func (t *tracer) inject(ctx context.Context) propagation.MapCarrier {
	found := propagation.MapCarrier{}
	t.propagator.Inject(ctx, found)
	return found
}

// with returns a copy of headers with the trace headers in found added. A trace header that does not fit into the
// message is left out, so that the producer's own headers are all kept.
func with(headers map[string]string, found propagation.MapCarrier) map[string]string {
	if len(found) == 0 {
		return headers
	}
	all := maps.Clone(headers)
	if all == nil {
		all = make(map[string]string, len(found))
	}
	if found[traceparent] != "" {
		delete(all, tracestate) // the producer's tracestate belongs to another trace
	}
	for name := range found {
		delete(all, name)
	}
	bytes := 0
	for name, value := range all {
		bytes += len(name) + len(value)
	}
	for _, name := range slices.SortedFunc(maps.Keys(found), byImportance) {
		value := found[name]
		isValid := len(value) <= lua.MaxHeaderValueBytes && utf8.ValidString(value)
		fits := len(all) < lua.MaxHeaders && bytes+len(name)+len(value) <= lua.MaxHeaderBytes
		lacksParent := name == tracestate && all[traceparent] == "" // a tracestate needs its traceparent
		if isValid && fits && !lacksParent {
			all[name] = value
			bytes += len(name) + len(value)
		}
	}
	return all
}

// byImportance sorts traceparent first, then tracestate, then all other names alphabetically.
func byImportance(a, b string) int {
	importance := func(name string) int { return slices.Index([]string{tracestate, traceparent}, name) }
	return cmp.Or(cmp.Compare(importance(b), importance(a)), strings.Compare(a, b))
}
