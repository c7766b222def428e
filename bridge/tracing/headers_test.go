package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/lua"
)

// traced returns a context in a span with the given trace state, and with baggage of one member k=bag.
func traced(t testing.TB, state, bag string) context.Context {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 1})
	if state != "" {
		sc = sc.WithTraceState(must(trace.ParseTraceState(state)))
	}
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	if bag != "" {
		ctx = baggage.ContextWithBaggage(ctx, must(baggage.New(must(baggage.NewMember("k", bag)))))
	}
	return ctx
}

// filled returns n headers with values of size bytes. The limits of a message are 64 headers and 32 KiB of them.
func filled(n, size int) map[string]string {
	headers := map[string]string{}
	for i := range n {
		headers[fmt.Sprintf("%04d", i)] = strings.Repeat("x", size)
	}
	return headers
}

// Trace headers that do not fit beside a message's own headers are left out, and the message stays valid.
func TestHeadersThatDoNotFitAreLeftOut(t *testing.T) {
	t.Parallel()
	provider, _ := memory(t)
	members := make([]string, 30)
	for i := range members {
		members[i] = fmt.Sprintf("m%d=%s", i, strings.Repeat("x", 255))
	}
	state := strings.Join(members, ",") // 7,828 bytes
	for _, c := range []struct {
		name       string
		headers    map[string]string
		state, bag string
		want       string
	}{
		{"nothing else", nil, "a=b", "c", "traceparent tracestate baggage"},
		{"no trace state", map[string]string{"kind": "x"}, "", "", "traceparent"},
		{"room for two", filled(62, 1), "a=b", "c", "traceparent tracestate"},
		{"room for one", filled(63, 1), "a=b", "c", "traceparent"},
		{"no room", filled(64, 1), "a=b", "c", ""},
		{"replaced", map[string]string{"traceparent": "old", "tracestate": "old", "baggage": "old"}, "a=b", "c",
			"traceparent tracestate baggage"},
		{"trace state of another trace", map[string]string{"traceparent": "old", "tracestate": "old"}, "", "", "traceparent"},
		{"bytes for one", filled(4, 8170), "a=b", strings.Repeat("c", 100), "traceparent"},
		{"no bytes", filled(4, 8188), "a=b", "c", ""},
		{"bytes for all but the large", filled(4, 8100), state, "c", "traceparent baggage"},
	} {
		before := maps.Clone(c.headers)
		all := tracing.Carrying(traced(t, c.state, c.bag), tracing.Config{Provider: provider}, c.headers)
		if err := lua.CheckHeaders(all); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var names []string
		for _, name := range []string{"traceparent", "tracestate", "baggage"} {
			if all[name] != "" && all[name] != "old" {
				names = append(names, name)
			}
		}
		want(t, c.name, strings.Join(names, " "), c.want)
		want(t, c.name+": the caller's map", fmt.Sprint(c.headers), fmt.Sprint(before))
		maps.DeleteFunc(before, func(name, _ string) bool { return strings.Contains("traceparent tracestate baggage", name) })
		for name, value := range before {
			want(t, c.name+": "+name, all[name], value)
		}
	}
}

// A context without a trace leaves the headers unchanged, so that headers written by hand are kept.
func TestContextWithoutATraceLeavesHeaders(t *testing.T) {
	t.Parallel()
	provider, _ := memory(t)
	all := tracing.Carrying(t.Context(), tracing.Config{Provider: provider},
		map[string]string{"traceparent": origin, "tracestate": "a=b"})
	want(t, "headers", fmt.Sprint(all), fmt.Sprint(map[string]string{"traceparent": origin, "tracestate": "a=b"}))
}

// odd is a propagator with headers of its own. It also writes two headers that are not valid for a message.
type odd struct{}

func (odd) Inject(_ context.Context, c propagation.TextMapCarrier) {
	c.Set("x-odd", "ok")
	c.Set("x-bytes", "\xff")
	c.Set("x-long", strings.Repeat("x", lua.MaxHeaderValueBytes+1))
}
func (odd) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	if len(c.Keys()) == 1 && c.Get("x-odd") == "ok" {
		c.Set("x-odd", "not written")
		ctx = context.WithValue(ctx, odd{}, "extracted")
	}
	return ctx
}
func (odd) Fields() []string { return nil }

// A configured propagator is used for writing and for reading. The headers that it writes are checked, and reading
// changes no header of the message.
func TestPropagatorByChoice(t *testing.T) {
	t.Parallel()
	provider, _ := memory(t)
	c := tracing.Config{Provider: provider, Propagator: odd{}}
	all := tracing.Carrying(t.Context(), c, nil)
	want(t, "headers", fmt.Sprint(all), "map[x-odd:ok]")
	m := message(all)
	deliver(worker(c, func(ctx context.Context, m *bridge.Message) error {
		want(t, "value", ctx.Value(odd{}), any("extracted"))
		return nil
	}), t.Context(), m, bridge.Acknowledged)
	want(t, "headers of the message", m.Headers["x-odd"], "ok")
}

// FuzzTraceHeaders: for any trace headers of a message, its handler is called once, in a span, and the headers that
// the handler sends on are valid for a message.
func FuzzTraceHeaders(f *testing.F) {
	for _, parent := range []string{"", origin, "00-" + origin[3:], "ff" + origin[2:], "01" + origin[2:] + "-more", origin + "-x",
		"00-00000000000000000000000000000000-0000000000000000-00", strings.ToUpper(origin), "\xff\x00", strings.Repeat("0", 9000)} {
		for _, state := range []string{"", "a=b", "a=b,a=b", "=", strings.Repeat("a=b,", 3000),
			strings.Repeat("k=", 20000), "a=\xff"} {
			f.Add(parent, state, "k=v;p=1", parent, "no", uint8(60), uint16(100))
		}
		for _, bag := range []string{"k=v,l=w", "k=%zz", "k=%ff", strings.Repeat("k=v,", 100), strings.Repeat("k", 8192) + "=v",
			strings.Repeat("x", 70000), ",,;;==", "ключ=значение", "k=\x00"} {
			f.Add(origin, "a=b", bag, other, "visibility timeout: not acknowledged within \xff", uint8(3), uint16(8191))
		}
	}
	provider, spans := memory(f)
	f.Fuzz(func(t *testing.T, parent, state, bag, last, text string, n uint8, size uint16) {
		for _, c := range []tracing.Config{{Provider: provider}, {Provider: provider, Parent: true}} {
			spans.Reset()
			m := message(map[string]string{"traceparent": parent, "tracestate": state, "baggage": bag, "kind": "x"})
			m.Extra, m.Error, m.ID = map[string]string{lua.FieldLastTrace: last}, text, text
			calls := 0
			err := deliver(worker(c, func(ctx context.Context, _ *bridge.Message) error {
				calls++
				own := filled(int(n%64), int(size)%8192)
				if lua.CheckHeaders(own) != nil {
					own = nil
				}
				all := tracing.Carrying(ctx, c, own)
				if err := lua.CheckHeaders(all); err != nil {
					t.Fatal(err)
				}
				for name, value := range own {
					if all[name] != value {
						t.Fatalf("header %s is lost", name)
					}
				}
				return errors.New(text)
			}), t.Context(), m, bridge.Retried)
			if calls != 1 || err == nil || len(m.Headers) != 4 || m.Headers["baggage"] != bag {
				t.Fatalf("called %d times: %v", calls, err)
			}
			if got := len(spans.GetSpans()); got != 2 {
				t.Fatalf("%d spans", got)
			}
			process := look(t, spans, "process orders")
			if len(process.Links) > 2 || !utf8.ValidString(process.Status.Description) || len(m.Trace) != 55 {
				t.Fatalf("%d links, status %q, trace %q", len(process.Links), process.Status.Description, m.Trace)
			}
		}
	})
}
