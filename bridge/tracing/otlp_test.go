package tracing_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/duestream/duestream/integration/redistest"
)

// receiver receives spans from an OTLP exporter, like a collector.
type receiver struct {
	mu    sync.Mutex
	spans []*otlp.Span
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body := io.Reader(request.Body)
	var err error
	if request.Header.Get("Content-Encoding") == "gzip" {
		body, err = gzip.NewReader(body)
	}
	var message collector.ExportTraceServiceRequest
	if err == nil && request.URL.Path == "/v1/traces" {
		var bytes []byte
		if bytes, err = io.ReadAll(body); err == nil {
			err = proto.Unmarshal(bytes, &message)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ofResource := range message.ResourceSpans {
		for _, ofScope := range ofResource.ScopeSpans {
			r.spans = append(r.spans, ofScope.Spans...)
		}
	}
	reply, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(reply)
}

// exporting returns a provider that exports to a receiver, and that receiver.
func exporting(t *testing.T) (*sdktrace.TracerProvider, *receiver) {
	t.Helper()
	received := &receiver{}
	server := httptest.NewServer(received)
	t.Cleanup(server.Close)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(server.URL+"/v1/traces"),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "billing"))))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return provider, received
}

// tree prints spans as trees, with letters for IDs, and with replacements for values that differ from run to run.
// header is the producer's traceparent. Trace A with span A1 is the one in this header: nobody exports its spans, and
// other spans only link to A1.
func tree(spans []*otlp.Span, header string) string {
	slices.SortFunc(spans, func(a, b *otlp.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	traces, ids := map[string]string{header[3:35]: "A"}, map[string]string{header[36:52]: "A1"}
	count := map[string]int{"A": 1}
	var b strings.Builder
	fmt.Fprintf(&b, "trace A: the producer's, of which the message carries span A1\n")
	var under func(parent string, trace []byte, indent string)
	under = func(parent string, trace []byte, indent string) {
		for _, s := range spans {
			if hex.EncodeToString(s.ParentSpanId) != parent || string(s.TraceId) != string(trace) {
				continue
			}
			letter := traces[hex.EncodeToString(trace)]
			count[letter]++
			ids[hex.EncodeToString(s.SpanId)] = fmt.Sprint(letter, count[letter])
			kind := strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
			fmt.Fprintf(&b, "%s%s %s (%s)", indent, ids[hex.EncodeToString(s.SpanId)], s.Name, kind)
			if s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
				fmt.Fprintf(&b, " ERROR %s", s.Status.Message)
			}
			b.WriteString("\n")
			for _, l := range s.Links {
				fmt.Fprintf(&b, "%s   link to %s:%s\n", indent, ids[hex.EncodeToString(l.SpanId)], pairs(l.Attributes))
			}
			for _, line := range wrapped(values(s.Attributes)) {
				b.WriteString(indent + "   " + line + "\n")
			}
			for _, e := range s.Events {
				fmt.Fprintf(&b, "%s   event %s%s\n", indent, e.Name, pairs(e.Attributes))
			}
			under(hex.EncodeToString(s.SpanId), trace, indent+"  ")
		}
	}
	for _, s := range spans {
		id := hex.EncodeToString(s.TraceId)
		if traces[id] == "" {
			traces[id] = string(rune('A' + len(traces)))
			fmt.Fprintf(&b, "trace %s\n", traces[id])
			under("", s.TraceId, "  ")
		}
	}
	return b.String()
}

// values returns attributes as sorted texts NAME=VALUE, with the replacements of normal.
func values(all []*common.KeyValue) []string {
	var texts []string
	for _, kv := range all {
		var value any
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			value = v.StringValue
		case *common.AnyValue_IntValue:
			value = v.IntValue
		case *common.AnyValue_DoubleValue:
			value = v.DoubleValue
		case *common.AnyValue_BoolValue:
			value = v.BoolValue
		}
		texts = append(texts, kv.Key+"="+normal(kv.Key, fmt.Sprint(value)))
	}
	slices.Sort(texts)
	return texts
}

// pairs returns attributes in one line, or "" if there are none.
func pairs(all []*common.KeyValue) string {
	if len(all) == 0 {
		return ""
	}
	return " " + strings.Join(values(all), ", ")
}

// wrapped joins texts into lines of limited length.
func wrapped(texts []string) (lines []string) {
	for _, text := range texts {
		if n := len(lines); n == 0 || len(lines[n-1])+2+len(text) > 100 {
			lines = append(lines, text)
		} else {
			lines[n-1] += ", " + text
		}
	}
	return lines
}

// A producer in Python that knows nothing of tracing but the header traceparent schedules a message. The message is
// delayed, fails twice, and is acknowledged. An OTLP receiver must get the spans that docs/guides/tracing.md shows.
func TestTraceOfADelayedMessageFromPython(t *testing.T) {
	t.Parallel()
	r, prefix := dial(t)
	serve(t, r, prefix)
	provider, received := exporting(t)
	cmd := exec.Command(redistest.PythonWithRedis(t), "../../examples/python/producer.py", "orders", "order-42", "--in", "0.25",
		"--payload", "charge 9.99", "--header", "traceparent="+origin)
	cmd.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+redistest.Shared(t).URL(), "DUESTREAM_PREFIX="+prefix)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const failures, attempts = 2, 3
	work(t, r, prefix, provider, failures, attempts)
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("the message was not delayed: settled after %v", took)
	}
	if err := provider.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	got := tree(received.spans, origin)
	t.Log("\n" + got)
	document, err := os.ReadFile("../../docs/guides/tracing.md")
	if err != nil || !strings.Contains(string(document), "\n```text\n"+got+"```\n") {
		t.Errorf("docs/guides/tracing.md does not show the spans that came (%v):\n%s", err, got)
	}
	for _, s := range received.spans {
		if s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s ends before it begins", s.Name)
		}
	}
}
