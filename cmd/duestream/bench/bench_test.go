package bench_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// fixture is a Config for a server, with sizes too small for meaningful figures, and the URL to connect again.
type fixture struct {
	bench.Config
	url string
}

// newFixture connects to the server at url.
func newFixture(t *testing.T, url, prefix string) fixture {
	t.Helper()
	r, err := bridge.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return fixture{bench.Config{Redis: r, Prefix: prefix, Queue: redistest.Queue(t), Messages: 1200, Rounds: 2}, url}
}

// scenario runs one function of package bench with the sizes of a fixture.
type scenario func(ctx context.Context, f fixture) (bench.Result, error)

var scenarios = map[string]scenario{
	"enqueue": func(ctx context.Context, f fixture) (bench.Result, error) {
		return bench.Enqueue(ctx, bench.EnqueueConfig{Config: f.Config, Callers: []int{4, 16}, Calls: 50})
	},
	"enqueue, backlog": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Backlog, f.Rounds = 2500, 1
		return bench.Enqueue(ctx, bench.EnqueueConfig{Config: f.Config, Callers: []int{4, 16}, Calls: 50})
	},
	"deliver": func(ctx context.Context, f fixture) (bench.Result, error) {
		return bench.Deliver(ctx, bench.DeliverConfig{Config: f.Config})
	},
	"deliver, backlog": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Backlog = 2500
		return bench.Deliver(ctx, bench.DeliverConfig{Config: f.Config})
	},
	"lateness": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Rounds = 1
		return bench.Lateness(ctx, bench.LatenessConfig{Config: f.Config, Rate: 1000, Duration: 300 * time.Millisecond})
	},
	"burst": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Rounds = 1
		return bench.Burst(ctx, bench.BurstConfig{Config: f.Config})
	},
	"trip": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Rounds = 1
		return bench.Trip(ctx, bench.TripConfig{Config: f.Config, Rates: []int{20, 500}, Duration: bench.MinDuration})
	},
	"idle": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Rounds = 1
		return bench.Idle(ctx, bench.IdleConfig{Config: f.Config, Queues: 20, Bridges: 2, Duration: time.Second,
			Dial: func(ctx context.Context, with ...func(*rueidis.ClientOption)) (*bridge.Redis, error) {
				return bridge.Dial(ctx, f.url, with...)
			}})
	},
	"retry": func(ctx context.Context, f fixture) (bench.Result, error) {
		return bench.Retry(ctx, bench.RetryConfig{Config: f.Config, Attempts: 3})
	},
	"memory": func(ctx context.Context, f fixture) (bench.Result, error) {
		return bench.Memory(ctx, bench.MemoryConfig{Config: f.Config, Rest: time.Millisecond})
	},
	"held": func(ctx context.Context, f fixture) (bench.Result, error) {
		f.Rounds = 1
		return bench.Held(ctx, bench.HeldConfig{Config: f.Config, Flight: 1000, Rest: time.Millisecond})
	},
}

// Every scenario measures its figures on a server of its own, and leaves nothing behind.
func TestScenariosMeasure(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Own(t)
			f := newFixture(t, server.URL(), server.Prefix(t))
			measured(t, f, run)
		})
	}
}

// With the append-only file, lateness has a floor: the delay that the file alone causes. The bytes appended to the file
// are a figure, too.
func TestLatenessBesideTheFile(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
	f := newFixture(t, server.URL(), server.Prefix(t))
	f.Rounds = 1
	r, err := bench.Lateness(t.Context(), bench.LatenessConfig{Config: f.Config, Rate: 1000, Duration: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lateness_p50", "lateness_p99", "lateness_max"} {
		if figure, ok := r.Find(name); !ok || figure.Floor == nil || figure.Floor.Median <= 0 {
			t.Errorf("%s: %+v", name, figure)
		}
	}
	// Per message, the file gets the entry with its payload of 256 bytes once, and the effects of XREADGROUP, XACK and
	// the drain. The limits are wide, because only the order of magnitude must be right.
	if figure, _ := r.Find("lateness_appended"); figure.Value.Median < 400 || figure.Value.Median > 2000 {
		t.Errorf("%+v", figure)
	}
}

// On a cluster, the keys of a queue are on one node and the shared keys on others.
func TestScenariosMeasureOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	f := newFixture(t, cluster.URL(), "bench")
	for _, name := range []string{"enqueue", "deliver", "memory", "idle", "trip"} {
		measured(t, f, scenarios[name])
	}
}

// measured runs a scenario, logs its figures, and checks that they are plausible and that no key is left.
func measured(t *testing.T, f fixture, run scenario) {
	t.Helper()
	claim, err := bench.Take(t.Context(), f.Redis, f.Prefix, false, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	r, err := run(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Figures) == 0 {
		t.Error("nothing was measured")
	}
	for _, f := range r.Figures {
		line := fmt.Sprintf("%s: %.4g %s", f.Name, f.Value.Median, f.Unit)
		if f.Floor != nil {
			line += fmt.Sprintf(", floor %.4g, ratio %.3g", f.Floor.Median, f.Ratio.Median)
		}
		t.Log(line)
		if v := f.Value; v.Min > v.Median || v.Median > v.Max || f.Unit == "msg/s" && v.Min <= 0 {
			t.Errorf("%s: %+v", f.Name, v)
		}
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Error(err)
	}
	f.wantsNoKeys(t)
}

// wantsNoKeys fails the test if the prefix has keys. Take refuses them, and itself writes no key.
func (f fixture) wantsNoKeys(t *testing.T) {
	t.Helper()
	if _, err := bench.Take(context.Background(), f.Redis, f.Prefix, false, func(int, int) {}); err != nil {
		t.Error(err)
	}
}

// A scenario that is interrupted at any step ends soon, returns the error, and leaves nothing behind.
func TestBenchLeavesNothing(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Own(t)
			f := newFixture(t, server.URL(), server.Prefix(t))
			claim, err := bench.Take(t.Context(), f.Redis, f.Prefix, false, func(int, int) {})
			if err != nil {
				t.Fatal(err)
			}
			// Growing gaps reach early and late steps in few runs.
			for after := int64(1); interrupted(t, f, run, after); after *= 6 {
				// Release removes the keys that the scenario left. It may be called again.
				if err := claim.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				f.wantsNoKeys(t)
			}
		})
	}
}

// interrupted runs a scenario and cancels its context at the call of Progress with number after. It returns false if
// the scenario succeeded, because it has fewer calls.
func interrupted(t *testing.T, f fixture, run scenario, after int64) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var steps atomic.Int64
	var cancelledAt time.Time
	f.Progress = func(string, int, int) {
		if steps.Add(1) == after {
			cancelledAt = time.Now()
			cancel()
		}
	}
	_, err := run(ctx, f)
	if !cancelledAt.IsZero() && time.Since(cancelledAt) > 20*time.Second {
		t.Errorf("interrupted after %d steps, it went on for %s", after, time.Since(cancelledAt))
	}
	switch {
	case err == nil && after == 1:
		t.Error("it was never interrupted")
	case err != nil && !errors.Is(err, context.Canceled):
		t.Errorf("interrupted after %d steps: %v", after, err)
	}
	return err != nil
}

// A prefix with keys is refused. With force it is accepted, and its keys stay.
func TestTakeRefusesAPrefixThatHoldsKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	prefix := server.Prefix(t)
	f := newFixture(t, server.URL(), prefix)
	c, key := f.Redis.Client, prefix+":{theirs}:due"
	for i := range 5000 { // SCAN needs many pages, and finds no key of the prefix in them
		if err := c.Do(t.Context(), c.B().Set().Key(fmt.Sprint("other-", i)).Value("").Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	f.wantsNoKeys(t)
	// The first key of the prefix: a message of another queue, due in the year 2286.
	if err := c.Do(t.Context(), c.B().Zadd().Key(key).ScoreMember().ScoreMember(1e13, "m").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Take(t.Context(), f.Redis, prefix, false, func(int, int) {}); !errors.Is(err, bench.ErrOccupied) {
		t.Errorf("want ErrOccupied, got %v", err)
	}
	registry := prefix + ":queues"
	if err := c.Do(t.Context(), c.B().Hset().Key(registry).FieldValue().FieldValue("theirs", "1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	claim, err := bench.Take(t.Context(), f.Redis, prefix, true, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scenarios["deliver"](t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := claim.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := c.Do(t.Context(), c.B().Keys().Pattern(prefix+"*").Build()).AsStrSlice(); err != nil || len(left) != 2 {
		t.Errorf("left: %q, error %v; want %s and %s alone", left, err, key, registry)
	}
	if fields, err := c.Do(t.Context(), c.B().Hkeys().Key(registry).Build()).AsStrSlice(); err != nil || len(fields) != 1 {
		t.Errorf("registered: %q, error %v", fields, err)
	}
}

// A value outside its limits is reported before the server is touched.
func TestConfigIsChecked(t *testing.T) {
	for field, run := range map[string]func(bench.Config) error{
		"payload":  func(c bench.Config) error { c.Payload = 17 << 20; return deliver(c) },
		"rounds":   func(c bench.Config) error { c.Rounds = -1; return deliver(c) },
		"messages": func(c bench.Config) error { c.Messages = -5; return deliver(c) },
		"backlog":  func(c bench.Config) error { c.Backlog = -1; return deliver(c) },
		"queue":    func(c bench.Config) error { c.Queue = "a b"; return deliver(c) },
		"prefix":   func(c bench.Config) error { c.Prefix = "a b"; return deliver(c) },
		"callers": func(c bench.Config) error {
			_, err := bench.Enqueue(t.Context(), bench.EnqueueConfig{Config: c, Callers: []int{8, -1}})
			return err
		},
		"rates": func(c bench.Config) error {
			_, err := bench.Trip(t.Context(), bench.TripConfig{Config: c, Rates: []int{1, 0}})
			return err
		},
		"duration": func(c bench.Config) error {
			_, err := bench.Lateness(t.Context(), bench.LatenessConfig{Config: c, Duration: time.Nanosecond})
			return err
		},
	} {
		err := run(bench.Config{Redis: &bridge.Redis{}, Prefix: "p", Queue: "q"})
		if wrong := (*bridge.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// deliver returns the error that the Deliver scenario gives for a Config.
func deliver(c bench.Config) error {
	_, err := bench.Deliver(context.Background(), bench.DeliverConfig{Config: c})
	return err
}
