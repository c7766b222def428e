// Package metrics exports metrics for Prometheus: the events of clients, bridges, workers and relays of an outbox, and
// the state of queues.
// docs/reference/metrics.md lists every metric.
//
//	m, err := metrics.New(metrics.Config{})
//	prometheus.MustRegister(m)
//	b, err := bridge.NewBridge(bridge.Config{Redis: redis, Observer: m})
//
// One Metrics serves all clients, workers and bridges of a process that share one Redis and prefix.
//
// Invariants:
//   - promtool accepts all names, help texts and units, and all metrics are in docs/reference/metrics.md
//     (TestNamesAreCleanAndDocumented).
//   - The number of series is bounded, for any number of queues and groups and for any names
//     (TestNamesBeyondTheBoundAreOther, TestNamesThatNoLabelCanHoldAreOther).
//   - A scrape ends in time even if Redis hangs, and shows no stale value of the state (TestScrapeWithoutRedis).
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

// Config configures a Metrics. The zero value is valid.
type Config struct {
	// MaxQueues is how many queues have series of their own: the first queues that it sees. All other queues are
	// counted together as "other". Default 200. Each queue of a bridge costs Prometheus about 40 series, and each group
	// of a worker 100.
	MaxQueues int
	// MaxGroups is the same limit for pairs of queue and group. Default 1,000.
	MaxGroups int
	// NativeHistograms adds native histograms to the classic ones. A Prometheus before version 3 with native histograms
	// enabled stores such a metric only as native: rules on its classic buckets then find nothing.
	NativeHistograms bool
	// Timeout is how long a scrape waits for Redis, and for the database of an outbox. Default 4s. It must be shorter
	// than the scrape timeout of Prometheus (10s by default). Otherwise the whole scrape fails while Redis is slow.
	Timeout time.Duration
	// Logger gets one line when the state can no longer be read, and one line when it can be read again. nil = discard.
	Logger *slog.Logger
	// Version is the program's version in duestream_build_info. Default: the program's version of duestream.
	Version string
}

func (c Config) withDefaults() Config {
	c.MaxQueues = cmp.Or(c.MaxQueues, DefaultMaxQueues)
	c.MaxGroups = cmp.Or(c.MaxGroups, DefaultMaxGroups)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Version = cmp.Or(c.Version, lua.NewIdentity("", 0, "").Version)
	return c
}

// Metrics counts the events of this process. At each scrape it also reads the state of the queues that the bridges of
// the process own. It is a bridge.Observer and a prometheus.Collector, and safe for concurrent use.
type Metrics struct {
	cfg    Config
	names  *names
	events *events
	state  *state
	build  prometheus.Metric

	outboxes *outboxes
}

var (
	_ observe.Observer      = (*Metrics)(nil)
	_ observe.RelayObserver = (*Metrics)(nil)
	_ prometheus.Collector  = (*Metrics)(nil)
)

func (c Config) validate() error {
	return lua.Faults("metrics",
		lua.AtLeast("max queues", c.MaxQueues, 1),
		lua.AtLeast("max groups", c.MaxGroups, 1),
		lua.AtLeast("timeout", c.Timeout, time.Millisecond),
	)
}

// New returns a Metrics. Register it with Prometheus, and set it as the Observer of clients, bridges and workers. The
// error names all faults of the configuration, each a *bridge.InvalidError.
func New(cfg Config) (*Metrics, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Metrics{cfg: cfg, names: newNames(cfg.MaxQueues, cfg.MaxGroups)}
	m.events = newEvents(m.names, cfg.NativeHistograms)
	m.state = newState(m.names, cfg.Timeout, cfg.Logger)
	m.outboxes = &outboxes{timeout: cfg.Timeout, ended: map[string]observe.RelayCounts{}}
	m.build = prometheus.MustNewConstMetric(prometheus.NewDesc("duestream_build_info",
		"Version of duestream and of Go in this process; always 1.", []string{"version", "goversion"}, nil),
		prometheus.GaugeValue, 1, cfg.Version, runtime.Version())
	return m, nil
}

// Series implements bridge.Observer.
func (m *Metrics) Series(part observe.Part, queue, group string) observe.Series {
	return m.events.of(part, queue, group)
}

// Call implements bridge.Observer.
func (m *Metrics) Call(script string, took time.Duration, err error) {
	m.events.call(script, took, err)
}

// BridgeStarted implements bridge.Observer.
func (m *Metrics) BridgeStarted(b observe.BridgeView) (ended func()) { return m.state.start(b) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.build.Desc()
	m.names.Describe(out)
	m.events.Describe(out)
	m.state.Describe(out)
	m.outboxes.Describe(out)
}

// Collect implements prometheus.Collector. It reads the state of the queues that the bridges of this process own, and
// the tables of its relays, within Config.Timeout. Concurrent scrapes share one read of the queues. Each scrape reads
// the tables.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	rows := make(chan []prometheus.Metric, 1)
	go func() { rows <- m.outboxes.read() }()
	out <- m.build
	m.names.refresh()
	m.state.Collect(out) // first, because it may assign labels to new names
	m.events.Collect(out)
	m.names.Collect(out)
	late := time.NewTimer(m.cfg.Timeout + time.Second) // ends the scrape even if a database ignores its deadline
	defer late.Stop()
	select {
	case all := <-rows:
		for _, one := range all {
			out <- one
		}
	case <-late.C:
	}
}
