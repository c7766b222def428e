package process

import (
	"cmp"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/cmd/duestream/internal/listener"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// MetricsFlags are the flags of the metrics listener, which serve, gateway, work and push run have.
type MetricsFlags struct {
	addr           string
	queues, groups int
	native         bool
	Profiles       bool
}

// Flags adds the flags to a command.
func (o *MetricsFlags) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.addr, "metrics", "",
		"answer over HTTP on this host:port, for Prometheus on /metrics; default $DUESTREAM_METRICS_ADDR, else not at all")
	f.IntVar(&o.queues, "metrics-queues", metrics.DefaultMaxQueues,
		"number of queues that have metrics of their own; the other queues share the label other")
	f.IntVar(&o.groups, "metrics-groups", metrics.DefaultMaxGroups,
		"number of groups, of all queues, that have metrics of their own")
	f.BoolVar(&o.Profiles, "pprof", false,
		"also serve profiles of this process on /debug/pprof of the --metrics address")
	f.BoolVar(&o.native, "metrics-native-histograms", false,
		"also export native histograms; Prometheus before version 3 may then store only these")
}

// check refuses an address that is no host:port, and limits below 1. Without a flag, the address of the environment
// counts.
func (o *MetricsFlags) check(environment string) error {
	o.addr = cmp.Or(o.addr, environment)
	if o.addr != "" {
		if _, _, err := net.SplitHostPort(o.addr); err != nil {
			return usage.Errorf("metrics %q: must be host:port, as 127.0.0.1:9090", o.addr)
		}
	}
	for name, n := range map[string]int{"metrics-queues": o.queues, "metrics-groups": o.groups} {
		if n < 1 {
			return usage.Errorf("%s %d: must be at least 1", name, n)
		}
	}
	return nil
}

// Listen listens on the address, and returns the listener, and the observer that counts for the metrics. Both are nil
// if there is neither an address nor a listener for operators. A listener for operators serves the metrics, too.
func (o *MetricsFlags) Listen(
	environment, version string, log *slog.Logger, operators *listener.Listener,
) (*listener.Listener, bridge.Observer, error) {
	if err := o.check(environment); err != nil || o.addr == "" && operators == nil {
		return nil, nil, err
	}
	m, err := metrics.New(metrics.Config{MaxQueues: o.queues, MaxGroups: o.groups, NativeHistograms: o.native,
		Version: version, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	l, err := listener.Listen(o.addr, log)
	if err != nil {
		return nil, nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 10,
	})
	l.Handle("GET /metrics", handler)
	operators.Handle("GET /metrics", handler)
	return l, m, nil
}
