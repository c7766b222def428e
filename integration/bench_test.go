package integration

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/integration/redistest"
)

// The benchmarks of this package measure the product beside its floors, both in the same run on a server of their own; what each
// measures is said in package bench, whose scenarios they run at full size. One run each: `go test -run '^$' -bench Deliver -benchtime 1x`.

// benchmark is the Config of a scenario on a server of this benchmark's own.
func benchmark(b *testing.B, args ...string) bench.Config {
	b.Helper()
	s := newStack(b, redistest.Own(b, args...))
	b.Logf("%s", s.server.Name())
	return bench.Config{Redis: s.redis, Prefix: s.prefix, Queue: s.queue}
}

// report hands the figures of a scenario to the benchmark: each by its name and unit, floors as _floor, ratios as _x_floor.
func report(b *testing.B, r bench.Result, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range r.Figures {
		b.ReportMetric(f.Value.Median, f.Name+"_"+f.Unit)
		line := fmt.Sprintf("%s: %.4g %s (%.4g to %.4g)", f.Name, f.Value.Median, f.Unit, f.Value.Min, f.Value.Max)
		if f.Floor != nil {
			b.ReportMetric(f.Floor.Median, f.Name+"_floor_"+f.Unit)
			b.ReportMetric(f.Ratio.Median, f.Name+"_x_floor")
			line += fmt.Sprintf("; floor %.4g (%.4g to %.4g); ratio %.3f (%.3f to %.3f)",
				f.Floor.Median, f.Floor.Min, f.Floor.Max, f.Ratio.Median, f.Ratio.Min, f.Ratio.Max)
		}
		b.Log(line)
	}
	for _, note := range r.Notes {
		b.Log(note)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEnqueue measures how fast messages are taken: one caller, 256 callers, batches of 100.
func BenchmarkEnqueue(b *testing.B) {
	cfg := bench.EnqueueConfig{Config: benchmark(b)}
	for b.Loop() {
		r, err := bench.Enqueue(b.Context(), cfg)
		report(b, r, err)
	}
}

// BenchmarkDeliver measures how fast what is due comes through to its acknowledgement: one bridge, one worker.
func BenchmarkDeliver(b *testing.B) {
	cfg := bench.DeliverConfig{Config: benchmark(b)}
	for b.Loop() {
		r, err := bench.Deliver(b.Context(), cfg)
		report(b, r, err)
	}
}

// BenchmarkBacklog measures both again behind a million messages that are scheduled for later.
func BenchmarkBacklog(b *testing.B) {
	const backlog = 1_000_000
	b.Run("enqueue", func(b *testing.B) {
		cfg := bench.EnqueueConfig{Config: benchmark(b)}
		cfg.Backlog = backlog
		for b.Loop() {
			r, err := bench.Enqueue(b.Context(), cfg)
			report(b, r, err)
		}
	})
	b.Run("deliver", func(b *testing.B) {
		cfg := bench.DeliverConfig{Config: benchmark(b)}
		cfg.Backlog = backlog
		for b.Loop() {
			r, err := bench.Deliver(b.Context(), cfg)
			report(b, r, err)
		}
	})
}
