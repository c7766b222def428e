package bench_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// fixture is a small Config on a server, and how to connect to it again.
type fixture struct {
	bench.Config
	server *redistest.Server
	dial   func(context.Context, ...func(*rueidis.ClientOption)) (*bridge.Redis, error)
}

func newFixture(t *testing.T, server *redistest.Server) fixture {
	t.Helper()
	f := fixture{server: server}
	f.dial = func(ctx context.Context, with ...func(*rueidis.ClientOption)) (*bridge.Redis, error) {
		return bridge.Dial(ctx, server.URL(), with...)
	}
	r, err := f.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	f.Config = bench.Config{Redis: r, Prefix: server.Prefix(t), Queue: redistest.Queue(t), Messages: 1500, Rounds: 2}
	return f
}

// left returns what exists of the prefix, but for what bridges leave behind: their heartbeats and the wake token of the registry.
func (f fixture) left(t *testing.T) (keys []string) {
	t.Helper()
	c := f.server.Client(t)
	for cursor := uint64(0); ; {
		page, err := c.Do(context.Background(), c.B().Scan().Cursor(cursor).Match(f.Prefix+":*").Count(1000).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range page.Elements {
			if key != f.Prefix+":bridges" && key != f.Prefix+":wake" {
				keys = append(keys, key)
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return keys
		}
	}
}

// scenarios are all scenarios at sizes at which they say nothing.
func (f fixture) scenarios() map[string]func(context.Context) (bench.Result, error) {
	return map[string]func(context.Context) (bench.Result, error){
		"enqueue": func(ctx context.Context) (bench.Result, error) {
			return bench.Enqueue(ctx, bench.EnqueueConfig{Config: f.Config, Callers: 16, Calls: 50})
		},
		"deliver": func(ctx context.Context) (bench.Result, error) {
			return bench.Deliver(ctx, bench.DeliverConfig{Config: f.Config})
		},
		"backlog": func(ctx context.Context) (bench.Result, error) {
			cfg := f.Config
			cfg.Backlog = 2500
			return bench.Deliver(ctx, bench.DeliverConfig{Config: cfg})
		},
		"lateness": func(ctx context.Context) (bench.Result, error) {
			return bench.Lateness(ctx, bench.LatenessConfig{Config: f.Config, Rate: 1000, Duration: 500 * time.Millisecond})
		},
		"burst": func(ctx context.Context) (bench.Result, error) {
			return bench.Burst(ctx, bench.BurstConfig{Config: f.Config})
		},
		"retry": func(ctx context.Context) (bench.Result, error) {
			return bench.Retry(ctx, bench.RetryConfig{Config: f.Config, Attempts: 3})
		},
		"memory": func(ctx context.Context) (bench.Result, error) {
			return bench.Memory(ctx, bench.MemoryConfig{Config: f.Config})
		},
		"held": func(ctx context.Context) (bench.Result, error) {
			return bench.Held(ctx, bench.HeldConfig{Config: f.Config, Flight: 1000})
		},
	}
}

func TestScenariosMeasure(t *testing.T) {
	server := redistest.Own(t)
	for name, run := range newFixture(t, server).scenarios() {
		t.Run(name, func(t *testing.T) {
			r, err := run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range r.Figures {
				line := fmt.Sprintf("%s %.4g %s", f.Name, f.Value.Median, f.Unit)
				if f.Floor != nil {
					line += fmt.Sprintf(", floor %.4g, ratio %.3g", f.Floor.Median, f.Ratio.Median)
				}
				t.Log(line)
			}
		})
	}
}

var _ = []any{atomic.Int64{}, errors.New, strings.Contains}
