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

// carrier lets a propagator read a message's headers, but for those that no client of ours would have written: they cost time to
// read, and W3C demands less.
type carrier map[string]string

func (c carrier) Get(name string) string {
	if value := c[name]; len(value) <= lua.MaxHeaderValueBytes {
		return value
	}
	return ""
}

func (c carrier) Set(string, string) {}

func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// extract returns a context with what the headers of a message say. What does not parse, or is too large, is not there.
func (t *tracer) extract(ctx context.Context, headers map[string]string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() { // of who runs the worker: a message has its own
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

// inject returns what the context says, as headers.
func (t *tracer) inject(ctx context.Context) propagation.MapCarrier {
	found := propagation.MapCarrier{}
	t.propagator.Inject(ctx, found)
	return found
}

// with returns headers with those that were found, and leaves both alone. What does not fit into a message is left out: whoever
// gets it has one header less, and the message all that its producer gave it.
func with(headers map[string]string, found propagation.MapCarrier) map[string]string {
	if len(found) == 0 {
		return headers
	}
	all := maps.Clone(headers)
	if all == nil {
		all = make(map[string]string, len(found))
	}
	if found[traceparent] != "" {
		delete(all, tracestate) // of another trace
	}
	for name := range found {
		delete(all, name)
	}
	bytes := 0
	for name, value := range all {
		bytes += len(name) + len(value)
	}
	for _, name := range slices.SortedFunc(maps.Keys(found), byNeed) {
		value := found[name]
		switch {
		case len(all) >= lua.MaxHeaders, len(value) > lua.MaxHeaderValueBytes, !utf8.ValidString(value),
			bytes+len(name)+len(value) > lua.MaxHeaderBytes:
		case name == tracestate && all[traceparent] == "":
		default:
			all[name] = value
			bytes += len(name) + len(value)
		}
	}
	return all
}

// byNeed has what cannot be done without go first.
func byNeed(a, b string) int {
	need := func(name string) int { return slices.Index([]string{tracestate, traceparent}, name) }
	return cmp.Or(cmp.Compare(need(b), need(a)), strings.Compare(a, b))
}
