package metrics_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
)

var (
	described = regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)
	tableRow  = regexp.MustCompile("(?m)^\\| `(duestream_[a-z_]*)` \\| ([a-z]+) \\| ([a-z, –]+) \\|")
)

// Alerting rules and dashboards rely on docs/reference/metrics.md: it lists exactly the metrics of this package, with
// their labels and types.
func TestNamesAreCleanAndDocumented(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range tableRow.FindAllStringSubmatch(string(document), -1) {
		documented[row[1]] = strings.Trim(strings.ReplaceAll(row[3], " ", ""), "–")
	}
	m := redistest.Must(metrics.New(metrics.Config{}))
	descs := make(chan *prometheus.Desc, 200)
	m.Describe(descs)
	close(descs)
	for d := range descs {
		found := described.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatal("a description of another form: ", d)
		}
		labels, there := documented[found[1]]
		if !there || labels != found[2] {
			t.Errorf("%s{%s} is documented as {%s}, %t", found[1], found[2], labels, there)
		}
		delete(documented, found[1])
	}
	for name := range documented {
		t.Errorf("%s is documented and not there", name)
	}
}

// The metrics pass the linter of client_golang, which has the same rules as promtool. Their types are those in
// docs/reference/metrics.md.
func TestMetricsPassTheLinter(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	everyPart(r.metrics, "q", "g")
	if _, err := r.client().Schedule(t.Context(), "q", nil); err != nil {
		t.Fatal(err)
	}
	r.serve()
	r.until(map[string]float64{"entries{queue=q}": 1})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.metrics)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	document, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if !strings.Contains(string(document), fmt.Sprintf("| `%s` | %s |", f.GetName(), kind)) {
			t.Errorf("%s is a %s, and documented as something else", f.GetName(), kind)
		}
	}
}

// everyPart asks for all series of a queue and a group.
func everyPart(m *metrics.Metrics, queue, group string) {
	m.Series(observe.Client, queue, "")
	m.Series(observe.Operator, queue, "")
	m.Series(observe.Bridge, queue, "")
	m.Series(observe.Bridge, queue, group)
	m.Series(observe.Worker, queue, group)
	m.Series(observe.Bridge, "", "")
}

// Beyond MaxQueues and MaxGroups, queues and groups are counted together as "other", and add no series. Without a
// bound, a queue for each tenant would overload Prometheus.
func TestNamesBeyondTheBoundAreOther(t *testing.T) {
	t.Parallel()
	m := redistest.Must(metrics.New(metrics.Config{MaxQueues: 3, MaxGroups: 4}))
	series := 0
	for i := range 1000 {
		queue := fmt.Sprint("queue-", i)
		everyPart(m, queue, fmt.Sprint("group-", i%7))
		everyPart(m, queue, fmt.Sprint("group-", i%3))
		m.Series(observe.Worker, queue, fmt.Sprint("group-", i%7)).Add(observe.Delivered, 1)
		if i == 10 {
			series = len(scrape(t, m))
		}
	}
	got := scrape(t, m)
	if len(got) != series || series > 600 {
		t.Errorf("%d series for 11 queues, %d for 1,000", series, len(got))
	}
	delivered, labels := 0.0, map[string]bool{}
	for name, v := range got {
		if strings.HasPrefix(name, "delivered_total{") {
			delivered += v
			labels[name] = true
		}
	}
	redistest.Want(t, "delivered", delivered, 1000)
	if got["other_queues"] != 997 || got["other_groups"] < 997 || !labels["delivered_total{group=other,queue=other}"] {
		t.Errorf("other queues %v, groups %v, labels %v", got["other_queues"], got["other_groups"], labels)
	}
}

// One label that is not UTF-8 would fail the whole scrape. A queue called "other" is counted with the other queues.
func TestNamesThatNoLabelCanHoldAreOther(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	for _, queue := range []string{"other", "\xff", "a b", strings.Repeat("q", 1000)} {
		everyPart(r.metrics, queue, "g")
	}
	stream, groups := r.prefix+":{q}:stream", []string{"\xff\xfe", "other", strings.Repeat("g", 300), "ok"}
	for _, group := range groups {
		r.do("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")
	}
	r.do("XADD", stream, "*", "id", "1")
	r.do("XADD", r.prefix+":{q}:dead", "*", "id", "1", "group", "\xff", "reason", "\xfe")
	r.do("XADD", r.prefix+":{q}:dead", "*", "id", "2", "group", "ok", "reason", "expired")
	r.do("HSET", r.prefix+":queues", "q", "1")
	r.serve()
	got := r.until(map[string]float64{"lag{group=ok,queue=q}": 1, "lag{group=other,queue=q}": 3, "up": 1,
		"dead{group=ok,queue=q,reason=expired}": 1})
	sum := 0.0
	for name, v := range got {
		if strings.HasPrefix(name, "dead{") {
			sum += v
		}
	}
	redistest.Want(t, "dead letters of all kinds", sum, 2)
	redistest.Want(t, "other queues", got["other_queues"], 4)
}

// Native histograms are added to the classic ones, and are off by default.
func TestNativeHistogramsAreOptIn(t *testing.T) {
	t.Parallel()
	for _, native := range []bool{false, true} {
		m := redistest.Must(metrics.New(metrics.Config{NativeHistograms: native}))
		m.Series(observe.Worker, "q", "g").AddTimed(observe.Handled, 1, 3000)
		registry := prometheus.NewRegistry()
		registry.MustRegister(m)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "duestream_handler_duration_seconds" {
				h := f.GetMetric()[0].GetHistogram()
				const classicBuckets = 18
				if len(h.GetBucket()) != classicBuckets || (h.Schema != nil) != native {
					t.Errorf("native %t: %v", native, h)
				}
			}
		}
	}
}

// Reporting an event allocates no memory, because it is done for each message.
func TestEventsDoNotAllocate(t *testing.T) {
	m := redistest.Must(metrics.New(metrics.Config{}))
	s := m.Series(observe.Worker, "q", "g")
	m.Call("ack", 1, nil)
	if n := testing.AllocsPerRun(100, func() {
		s.Add(observe.Delivered, 1)
		s.AddTimed(observe.Handled, 1, 3000)
		m.Call("ack", 3000, nil)
		m.Series(observe.Bridge, "q", "g").Add(observe.Reclaimed, 1)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Without an observer, wrapping a client returns the client itself.
func TestWithoutObserverNothingIsWrapped(t *testing.T) {
	if c := observe.Wrap(nil, nil); c != nil || observe.SeriesOf(nil, observe.Client, "q", "") != nil {
		t.Error("a client or a Series was made without an observer")
	}
}

// Messages of a foreign producer with due times in seconds are 56 years late. The sum of such latenesses must not
// overflow.
func TestDecadesOfLatenessAddUp(t *testing.T) {
	t.Parallel()
	m := redistest.Must(metrics.New(metrics.Config{}))
	s := m.Series(observe.Bridge, "q", "")
	late := 56 * 365 * 24 * time.Hour
	for range 100 {
		s.AddTimed(observe.Drained, 1000, late)
	}
	s.AddTimed(observe.Drained, 3, 3*time.Millisecond)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "duestream_lateness_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		redistest.Want(t, "count", h.GetSampleCount(), 100_003)
		redistest.Want(t, "years", int(h.GetSampleSum()/late.Seconds()), 100_000)
		redistest.Want(t, "at most 5 ms", h.GetBucket()[2].GetCumulativeCount(), 3)
		redistest.Want(t, "at most 1 h", h.GetBucket()[17].GetCumulativeCount(), 3)
		return
	}
	t.Error("no lateness")
}
