package metrics_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// patience is how long a test waits for a state that must come.
const patience = 30 * time.Second

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a prefix on a server, with a Metrics that observes its client, bridge and worker.
type rig struct {
	*testing.T
	metrics *metrics.Metrics
	redis   *bridge.Redis
	prefix  string
}

func newRig(t *testing.T, url, prefix string, cfg metrics.Config) *rig {
	t.Helper()
	r, err := bridge.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &rig{t, redistest.Must(metrics.New(cfg)), r, prefix}
}

// serve runs a bridge until the returned function is called, or the test ends.
func (r *rig) serve() (stop func()) {
	b, err := bridge.NewBridge(bridge.Config{Redis: r.redis, Prefix: r.prefix, AnyServer: true, Observer: r.metrics,
		Defaults: bridge.Policy{VisibilityTimeout: 300 * time.Millisecond, MaxAttempts: 3, RetryMin: 10 * time.Millisecond,
			RetryMax: 20 * time.Millisecond}})
	if err != nil {
		r.Fatal(err)
	}
	return r.run(b.Run)
}

// work runs a worker until stop is called, or the test ends.
func (r *rig) work(queue, group string, handler bridge.Handler) (*bridge.Worker, func()) {
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r.redis, Prefix: r.prefix, Queue: queue, Group: group, Handler: handler,
		Observer: r.metrics})
	if err != nil {
		r.Fatal(err)
	}
	return w, r.run(w.Run)
}

// run calls do with a context that ends when stop is called, or with the test. stop waits for do.
func (r *rig) run(do func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := do(ctx); err != nil {
			r.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	r.Cleanup(stop)
	return stop
}

// client returns a client that the metrics observe.
func (r *rig) client() *bridge.Client {
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: r.redis, Prefix: r.prefix, Observer: r.metrics})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	return c
}

// do runs a command in Redis, which must succeed.
func (r *rig) do(words ...string) {
	r.Helper()
	if err := r.redis.Client.Do(r.Context(), r.redis.Client.B().Arbitrary(words...).Build()).Error(); err != nil {
		r.Fatal(words, err)
	}
}

// scrape returns all values by name and labels, as in lag{group=g,queue=q}, without the prefix duestream_. The value of
// a histogram is its count.
func (r *rig) scrape() map[string]float64 {
	r.Helper()
	return scrape(r, r.metrics)
}

// scrape is the scrape of a rig for any collector.
func scrape(t testing.TB, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			name := strings.TrimPrefix(f.GetName(), "duestream_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			switch {
			case m.GetHistogram() != nil:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			default:
				values[name] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// until scrapes until all wanted values are as given, and returns all values of the last scrape.
func (r *rig) until(want map[string]float64) (got map[string]float64) {
	r.Helper()
	redistest.Eventually(r, patience, func() (bool, string) {
		got = r.scrape()
		why := ""
		for name, v := range want {
			if got[name] != v {
				why += fmt.Sprintf("\n%s is %v, want %v", name, got[name], v)
			}
		}
		return why == "", why
	})
	return got
}
