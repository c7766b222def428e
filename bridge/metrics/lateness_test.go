package metrics_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// buckets returns how many values of a histogram are at or below each of some bounds, in seconds, and the sum of all
// values.
func buckets(t testing.TB, c prometheus.Collector, name string, bounds ...float64) (below []uint64, sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetHistogram().GetSampleSum()
			for _, bound := range bounds {
				for _, b := range m.GetHistogram().GetBucket() {
					if b.GetUpperBound() == bound {
						below = append(below, b.GetCumulativeCount())
					}
				}
			}
		}
	}
	return below, sum
}

// A message that was due a minute ago counts as a minute late, at the bridge and at the handler. A message that is
// drained on time does not count as late. That holds on a cluster too, where the bridge's idea of the time is from its
// last heartbeat.
func TestLatenessIsFromTheDueTime(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"one server": func(t *testing.T) string { return redistest.Shared(t).URL() },
		"cluster":    func(t *testing.T) string { return redistest.Cluster(t, 3, 0).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, url(t), fmt.Sprintf("lateness-%x", time.Now().UnixNano()), metrics.Config{})
			client := r.client()
			minuteAgo := time.Now().Add(-time.Minute).UnixMilli()
			for _, queue := range []string{"a", "b"} {
				if _, err := bridge.CreateGroup(t.Context(), r.redis, r.prefix, queue, "g"); err != nil {
					t.Fatal(err)
				}
				// A message in an hour registers the queue.
				if _, err := client.Schedule(t.Context(), queue, nil, bridge.In(time.Hour)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 5 {
				r.do("ZADD", r.prefix+":{a}:due", fmt.Sprint(minuteAgo), fmt.Sprint("late-", i))
			}
			r.serve()
			handled := func(_ context.Context, _ *bridge.Message) error { return nil }
			r.work("a", "g", handled)
			r.work("b", "g", handled)
			r.until(map[string]float64{"drained_total{queue=a}": 5, "acknowledged_total{group=g,queue=a}": 5, "up": 1,
				"scheduled{queue=a}": 1, "scheduled{queue=b}": 1})
			for _, name := range []string{"duestream_lateness_seconds", "duestream_handler_lateness_seconds"} {
				below, sum := buckets(t, r.metrics, name, 30, 300)
				// There are five late messages. Each is one to two minutes late.
				if n := len(below); n == 0 || sum < 5*59.5 || sum > 5*120 {
					t.Errorf("%s: %v at or below 30 s and 5 min, sum %v", name, below, sum)
				}
			}
			for range 5 {
				if _, err := client.Schedule(t.Context(), "b", nil, bridge.In(20*time.Millisecond)); err != nil {
					t.Fatal(err)
				}
			}
			r.until(map[string]float64{"drained_total{queue=b}": 5})
			// The sum has the five late messages, and five more that are less than 25 s late each.
			if below, sum := buckets(t, r.metrics, "duestream_lateness_seconds", 30); sum > 5*120+5*25 {
				t.Errorf("five on time: %v at or below 30 s, sum %v", below, sum)
			}
		})
	}
}
