package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/integration/redistest"
)

// The benchmarks of this file run the scenarios of package bench at full size, each on a server of its own. A scenario
// measures duestream and, in the same run, its floor: what the server does at best without duestream. Package bench
// documents each scenario. One run of two of them:
//
//	go test ./integration -run '^$' -bench 'Deliver|Enqueue' -benchtime 1x -timeout 30m -v

// measure runs a scenario on a server and reports its figures, each with its name and unit. A floor has _floor_
// before the unit, the ratio ends in _x_floor.
func measure[C any](b *testing.B, server *redistest.Server, scenario func(context.Context, C) (bench.Result, error),
	configure func(bench.Config) C) {
	b.Helper()
	s := newStack(b, server)
	b.Log(server.Name())
	for b.Loop() {
		result, err := scenario(b.Context(), configure(bench.Config{Redis: s.redis, Prefix: s.prefix, Queue: s.queue}))
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range result.Figures {
			unit := strings.ReplaceAll(f.Unit, " ", "_")
			b.ReportMetric(f.Value.Median, f.Name+"_"+unit)
			line := fmt.Sprintf("%s: %.4g %s (%.4g to %.4g)", f.Name, f.Value.Median, f.Unit, f.Value.Min, f.Value.Max)
			if f.Floor != nil {
				b.ReportMetric(f.Floor.Median, f.Name+"_floor_"+unit)
				b.ReportMetric(f.Ratio.Median, f.Name+"_x_floor")
				line += fmt.Sprintf(", floor %.4g (%.4g to %.4g), ratio %.3f (%.3f to %.3f)",
					f.Floor.Median, f.Floor.Min, f.Floor.Max, f.Ratio.Median, f.Ratio.Min, f.Ratio.Max)
			}
			b.Log(line)
		}
		for _, note := range result.Notes {
			b.Log(note)
		}
	}
	b.ReportMetric(0, "ns/op")
}

func enqueueBehind(backlog int) func(bench.Config) bench.EnqueueConfig {
	return func(c bench.Config) bench.EnqueueConfig {
		c.Backlog = backlog
		return bench.EnqueueConfig{Config: c}
	}
}

func deliverBehind(backlog int) func(bench.Config) bench.DeliverConfig {
	return func(c bench.Config) bench.DeliverConfig {
		c.Backlog = backlog
		return bench.DeliverConfig{Config: c}
	}
}

// BenchmarkEnqueue measures how many messages a second are scheduled: by one caller, by 64 and 256 callers, and in
// batches of 100.
func BenchmarkEnqueue(b *testing.B) { measure(b, redistest.Own(b), bench.Enqueue, enqueueBehind(0)) }

// BenchmarkDeliver measures how fast 200,000 due messages are delivered, with one bridge and one worker.
func BenchmarkDeliver(b *testing.B) { measure(b, redistest.Own(b), bench.Deliver, deliverBehind(0)) }

// BenchmarkBacklog repeats BenchmarkEnqueue and BenchmarkDeliver in a queue with a million messages that are not due.
func BenchmarkBacklog(b *testing.B) {
	const backlog = 1_000_000
	b.Run("enqueue", func(b *testing.B) { measure(b, redistest.Own(b), bench.Enqueue, enqueueBehind(backlog)) })
	b.Run("deliver", func(b *testing.B) { measure(b, redistest.Own(b), bench.Deliver, deliverBehind(backlog)) })
}

// BenchmarkLateness measures the lateness of messages at 1,000 and at 20,000 a second, for 15 seconds. The server has
// an append-only file that is never rewritten. The floor is the delay that this file alone causes.
func BenchmarkLateness(b *testing.B) {
	for _, rate := range []int{1000, 20_000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) {
			server := redistest.Own(b, "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
			measure(b, server, bench.Lateness, func(c bench.Config) bench.LatenessConfig {
				c.Rounds = 3
				return bench.LatenessConfig{Config: c, Rate: rate}
			})
		})
	}
}

// BenchmarkTrip measures how much the server works for one message, from the schedule to the acknowledgement, at 1 to
// 10,000 messages a second.
func BenchmarkTrip(b *testing.B) {
	measure(b, redistest.Own(b), bench.Trip, func(c bench.Config) bench.TripConfig { return bench.TripConfig{Config: c} })
}

// BenchmarkBurst measures when the last of 25,000 messages is delivered that are due in the same millisecond.
func BenchmarkBurst(b *testing.B) {
	measure(b, redistest.Own(b), bench.Burst, func(c bench.Config) bench.BurstConfig { return bench.BurstConfig{Config: c} })
}

// BenchmarkIdle measures the cost of four bridges with a thousand empty queues.
func BenchmarkIdle(b *testing.B) {
	server := redistest.Own(b)
	measure(b, server, bench.Idle, func(c bench.Config) bench.IdleConfig {
		return bench.IdleConfig{Config: c, Dial: func(ctx context.Context, with ...func(*rueidis.ClientOption)) (*bridge.Redis,
			error) {
			return bridge.Dial(ctx, server.URL(), with...)
		}}
	})
}

// BenchmarkRetry measures how fast 200,000 messages fail five times each and are dead-lettered.
func BenchmarkRetry(b *testing.B) {
	measure(b, redistest.Own(b), bench.Retry, func(c bench.Config) bench.RetryConfig { return bench.RetryConfig{Config: c} })
}

// withoutSlowLog turns off the slow log. On a busy machine, the log keeps the arguments of slow commands, which would
// be most of the memory that a benchmark sees in use at its end.
var withoutSlowLog = []string{"--slowlog-log-slower-than", "-1"}

// BenchmarkHeld measures the cost of one held entry while a million messages pass through two groups.
func BenchmarkHeld(b *testing.B) {
	measure(b, redistest.Own(b, withoutSlowLog...), bench.Held,
		func(c bench.Config) bench.HeldConfig { return bench.HeldConfig{Config: c} })
}

// BenchmarkMemory measures the server's memory per message in each state.
func BenchmarkMemory(b *testing.B) {
	measure(b, redistest.Own(b, withoutSlowLog...), bench.Memory,
		func(c bench.Config) bench.MemoryConfig { return bench.MemoryConfig{Config: c} })
}
