package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// gauge returns the value of a collector's gauge or counter that has this name and these label values. ok is false if
// there is none.
func gauge(t testing.TB, c prometheus.Collector, name string, labels ...string) (v float64, ok bool) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if f.GetName() == name && strings.Join(values, " ") == strings.Join(labels, " ") {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
			}
		}
	}
	return 0, false
}

// On every server, a bridge with metrics needs no more rights than one without, except for two figures:
// duestream_retrying needs ZSCAN, and duestream_memory_bytes needs MEMORY USAGE. The test grants these at the end of
// its first round.
func TestMetricsNeedNoMoreThanTheBridgesUser(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		m := redistest.Must(metrics.New(metrics.Config{}))
		s := &stack{t: t}
		b, err := bridge.NewBridge(bridge.Config{Redis: g.dial("bridge"), Prefix: g.prefix, AnyServer: true, Observer: m})
		if err != nil {
			t.Fatal(err)
		}
		s.run("bridge", b.Run)
		producer := g.dial("producer")
		client, err := bridge.NewClient(bridge.ClientConfig{Redis: producer, Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := bridge.CreateGroup(t.Context(), g.dial("worker"), g.prefix, "q", "g"); err != nil {
			t.Fatal(err)
		}
		for _, delay := range []time.Duration{10 * time.Millisecond, time.Hour} {
			if _, err := client.Schedule(t.Context(), "q", nil, bridge.In(delay), bridge.Header("a", "b")); err != nil {
				t.Fatal(err)
			}
		}
		for _, allowed := range []bool{false, true} {
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				up, _ := gauge(t, m, "duestream_up")
				lag, _ := gauge(t, m, "duestream_lag", "g", "q")
				scheduled, _ := gauge(t, m, "duestream_scheduled", "q")
				info, _ := gauge(t, m, "duestream_redis_info_up")
				_, memory := gauge(t, m, "duestream_memory_bytes", "q")
				_, retrying := gauge(t, m, "duestream_retrying", "g", "q")
				return up == 1 && lag == 1 && scheduled == 1 && info == 1 && memory == allowed && retrying == allowed,
					fmt.Sprint(up, lag, scheduled, info, memory, retrying)
			})
			g.do("ACL", "SETUSER", "bridge"+g.suffix, "+memory|usage", "+zscan")
		}
	})
}
