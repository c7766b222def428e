package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// configs returns ways to trace a worker: from no tracing to recording every span and dropping it.
func configs() []struct {
	name string
	tracing.Config
} {
	return []struct {
		name string
		tracing.Config
	}{
		{"off", tracing.Config{}},
		{"noop", tracing.Config{Provider: noop.NewTracerProvider()}},
		{"not_sampled", tracing.Config{Provider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))}},
		{"recorded", tracing.Config{Provider: sdktrace.NewTracerProvider()}},
	}
}

// BenchmarkHandler measures the cost of tracing for one delivery, with a handler that does nothing.
func BenchmarkHandler(b *testing.B) {
	for _, c := range configs() {
		b.Run(c.name, func(b *testing.B) {
			cfg, m, ctx := worker(c.Config, done), message(map[string]string{"traceparent": origin}), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				_ = cfg.Handler(ctx, m)
				if cfg.Settled != nil {
					cfg.Settled(m, bridge.Acknowledged)
				}
			}
		})
	}
}

// BenchmarkDrainAndDeliver measures the draining and delivery of messages with a traceparent, by a worker with 64
// slots. It alternates the ways of tracing, in changing order; "plain" does not use this package. A ratio is the
// median over the rounds of plain's time divided by the other way's time in the same round. There is one for the wall
// clock, and one for the processor time of this process, which other programs disturb less. Run the benchmark with
// -benchtime 1x on a quiet machine.
func BenchmarkDrainAndDeliver(b *testing.B) {
	const messages, rounds = 20_000, 21
	server := redistest.Own(b)
	r, err := bridge.Dial(b.Context(), server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	ways := append(configs(), configs()[0])
	ways[len(ways)-1].name = "plain"
	order := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		walls, processors := map[string][]float64{}, map[string][]float64{}
		for round := range rounds + 1 {
			for _, i := range order.Perm(len(ways)) {
				way := ways[i]
				cfg := bridge.WorkerConfig{Queue: "orders", Group: "billing", Handler: done}
				if way.name != "plain" {
					cfg = tracing.Worker(cfg, way.Config)
				}
				wall, processor := drainAndDeliver(b, r, cfg, messages)
				if round > 0 { // the first round warms up
					walls[way.name] = append(walls[way.name], wall.Seconds())
					processors[way.name] = append(processors[way.name], processor.Seconds())
				}
			}
		}
		for _, way := range ways {
			b.ReportMetric(ratio(walls["plain"], walls[way.name]), way.name+"_wall")
			b.ReportMetric(ratio(processors["plain"], processors[way.name]), way.name+"_cpu")
			wall := slices.Sorted(slices.Values(walls[way.name]))
			processor := slices.Sorted(slices.Values(processors[way.name]))
			b.Logf("%s: %d messages in %.0f ms (median; least %.0f), %.0f ms of processor (least %.0f)", way.name, messages,
				1000*wall[rounds/2], 1000*wall[0], 1000*processor[rounds/2], 1000*processor[0])
		}
	}
	b.ReportMetric(0, "ns/op")
}

// ratio returns the median of a[i]/b[i].
func ratio(a, b []float64) float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// drainAndDeliver returns the time from the first drain until all messages are settled, and this process's processor
// time for it.
func drainAndDeliver(b *testing.B, r *bridge.Redis, cfg bridge.WorkerConfig, messages int) (wall, processor time.Duration) {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	k := lua.NewKeys(lua.DefaultPrefix, "orders")
	check := func(err error) { // a cancelled context is no failure: stop cancels ctx at the end
		if err != nil && !errors.Is(err, context.Canceled) {
			b.Fatal(err)
		}
	}
	check(r.Client.Do(ctx, r.Client.B().Flushall().Build()).Error())
	// A queue that is held keeps messages that are due in its schedule, so the measured time includes draining them.
	check(r.Client.Do(ctx, r.Client.B().Hset().Key(k.Policy).FieldValue().FieldValue("held", "1").Build()).Error())
	meta := lua.EncodeMeta(map[string]string{"traceparent": origin}, 0, time.Time{})
	for first := 0; first < messages; first += 500 {
		items := make([]lua.Item, 500)
		for i := range items {
			items[i] = lua.Item{ID: fmt.Sprintf("m-%06d", first+i), When: lua.After(0), Payload: []byte("charge 9.99"),
				Meta: meta}
		}
		_, err := lua.Enqueue(ctx, r.Client, k, lua.Token{}, items, lua.Durability{})
		check(err)
	}
	check(r.Client.Do(ctx, r.Client.B().Hdel().Key(k.Policy).Field("held").Build()).Error())

	settled, all := atomic.Int64{}, make(chan struct{})
	next := cfg.Settled
	cfg.Settled = func(m *bridge.Message, s bridge.Settlement) {
		if next != nil {
			next(m, s)
		}
		if settled.Add(1) == int64(messages) {
			close(all)
		}
	}
	cfg.Redis, cfg.Concurrency = r, 64
	w, err := bridge.NewWorker(cfg)
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	runtime.GC() // so that the garbage of the previous run is not collected during this one
	began, spent := time.Now(), processorTime()
	for left := messages; left > 0; {
		d, err := lua.Drain(ctx, r.Client, k, 500, 1<<20)
		check(err)
		left -= d.Moved
	}
	<-all
	wall, processor = time.Since(began), processorTime()-spent
	stop()
	check(<-ended)
	return wall, processor
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
