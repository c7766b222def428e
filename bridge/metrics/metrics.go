// Package metrics shows Prometheus what clients, bridges and workers do, and what queues hold. docs/METRICS.md names every
// metric.
//
//	m := metrics.New(metrics.Config{})
//	prometheus.MustRegister(m)
//	b, err := bridge.NewBridge(bridge.Config{Redis: redis, Observer: m})
//
// One Metrics serves all clients, workers and bridges of a process that belong to one Redis and prefix.
//
// Invariants:
//   - Names, help and units are as promtool wants them, and all are in docs/METRICS.md (TestNamesAreCleanAndDocumented).
//   - However many queues and groups there are, and whatever they are called, the number of series is bounded
//     (TestNamesBeyondTheBoundAreOther, TestNamesThatNoLabelCanHoldAreOther).
//   - A scrape ends in time, with no old value for the state, whatever Redis does (TestScrapeWithoutRedis).
//   - No event allocates (TestEventsDoNotAllocate).
package metrics

import (
	"cmp"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultMaxQueues = 200
	DefaultMaxGroups = 1000
	DefaultTimeout   = 4 * time.Second
)

// Config configures a Metrics. The zero value will do.
type Config struct {
	// MaxQueues is how many queues have series of their own, those that are met first; all others are counted together as
	// "other". Default 200. Too high: each queue of a bridge costs Prometheus about 40 series, and each group of a worker 100.
	MaxQueues int
	// MaxGroups is the same for pairs of queue and group. Default 1,000.
	MaxGroups int
	// NativeHistograms adds native histograms to the classic ones. Prometheus before 3 that has them switched on stores such a
	// metric as native only: rules on its buckets find nothing then.
	NativeHistograms bool
	// Timeout is how long a scrape waits for Redis. Default 4s. It must be below the scrape timeout of Prometheus, which is 10s
	// by default, or a slow Redis takes all metrics away.
	Timeout time.Duration
	// Logger is told once when the state cannot be read, and when it can again. Nil: discard.
	Logger *slog.Logger
	// Version is that of the program, in duestream_build_info. Default: that of duestream in it.
	Version string
}

func (c Config) withDefaults() Config {
	c.MaxQueues = cmp.Or(max(0, c.MaxQueues), DefaultMaxQueues)
	c.MaxGroups = cmp.Or(max(0, c.MaxGroups), DefaultMaxGroups)
	c.Timeout = cmp.Or(max(0, c.Timeout), DefaultTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Version = cmp.Or(c.Version, lua.NewIdentity("", 0, "").Version)
	return c
}

// Metrics collects what happens in this process, and reads at each scrape what the queues hold that its bridges own. It is a
// bridge.Observer and a prometheus.Collector, and safe for concurrent use.
type Metrics struct {
	cfg    Config
	names  *names
	events *events
	state  *state
	build  prometheus.Metric
}

var (
	_ observe.Observer     = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New returns a Metrics. It is to be registered, and given to what it is to observe as their Observer.
func New(cfg Config) *Metrics {
	cfg = cfg.withDefaults()
	m := &Metrics{cfg: cfg, names: newNames(cfg.MaxQueues, cfg.MaxGroups)}
	m.events = newEvents(m.names, cfg.NativeHistograms)
	m.state = newState(m.names, cfg.Timeout, cfg.Logger)
	m.build = prometheus.MustNewConstMetric(prometheus.NewDesc("duestream_build_info",
		"Version of duestream and of Go in this process; always 1.", []string{"version", "goversion"}, nil),
		prometheus.GaugeValue, 1, cfg.Version, runtime.Version())
	return m
}

// Of implements bridge.Observer.
func (m *Metrics) Of(part observe.Part, queue, group string) observe.Series {
	return m.events.of(part, queue, group)
}

// Call implements bridge.Observer.
func (m *Metrics) Call(script string, took time.Duration, err error) {
	m.events.call(script, took, err)
}

// Serves implements bridge.Observer.
func (m *Metrics) Serves(b observe.Served) (ended func()) { return m.state.serves(b) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.build.Desc()
	m.names.Describe(out)
	m.events.Describe(out)
	m.state.Describe(out)
}

// Collect implements prometheus.Collector. It reads the state of the queues that bridges of this process own, within
// Config.Timeout; scrapes at the same time share one read.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	out <- m.build
	m.names.refresh()
	m.state.Collect(out) // before the rest: it may meet names
	m.events.Collect(out)
	m.names.Collect(out)
}
