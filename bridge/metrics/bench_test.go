package metrics_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
)

// BenchmarkDrainAndDeliver measures 20,000 messages from the moment when all are due until all are acknowledged. It
// alternates runs without and with metrics, and without and with a history. on/off is the ratio of the throughputs.
// cpu-off/on is the ratio of the processor times of this process and the server, which other programs on the machine
// disturb less. Both are medians; the first pair warms up.
func BenchmarkDrainAndDeliver(b *testing.B) {
	b.Run("metrics", func(b *testing.B) { drainAndDeliver(b, true, false) })
	b.Run("history", func(b *testing.B) { drainAndDeliver(b, false, true) })
}

// drainAndDeliver alternates rounds without and with the given parts: metrics, and a history of each message.
func drainAndDeliver(b *testing.B, withMetrics, withHistory bool) {
	server := redistest.Shared(b)
	r, err := bridge.Dial(b.Context(), server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var wall, cpu [2][]time.Duration // of rounds without [0] and with [1] the parts
	for rounds := 0; b.Loop(); rounds++ {
		for i := range 2 {
			on := (i + rounds) % 2 // 1 = with the parts; each pair begins with the other of the two
			before := processorTime(b, r)
			took := deliverAll(b, r, server.Prefix(b), withMetrics && on == 1, withHistory && on == 1)
			if rounds > 0 {
				wall[on], cpu[on] = append(wall[on], took), append(cpu[on], processorTime(b, r)-before)
			}
		}
	}
	if len(wall[0]) > 0 {
		b.ReportMetric(float64(median(wall[0]))/float64(median(wall[1])), "on/off")
		b.ReportMetric(float64(median(cpu[0]))/float64(median(cpu[1])), "cpu-off/on")
		b.ReportMetric(toDeliver/median(wall[1]).Seconds(), "msg/s")
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// processorTime returns the processor time that this process and the server have used.
func processorTime(b *testing.B, r *bridge.Redis) (used time.Duration) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		b.Fatal(err)
	}
	info, err := view.ReadInfo(b.Context(), r.Client, "cpu")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			b.Fatal(err)
		}
		used += time.Duration(seconds * float64(time.Second))
	}
	return used + time.Duration(own.Utime.Nano()+own.Stime.Nano())
}

// toDeliver is the number of messages of a round.
const toDeliver = 20_000

// deliverAll returns the time from the moment when all messages are due until all are acknowledged.
func deliverAll(b *testing.B, r *bridge.Redis, prefix string, withMetrics, withHistory bool) time.Duration {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var observer bridge.Observer
	if withHistory {
		most := 100_000 // entries of the history, more than the round writes
		must(redistest.Must(admin.New(r, prefix)).WritePolicy(b.Context(), "q", "", admin.PolicyUpdate{History: &most}))
	}
	if withMetrics {
		observer = redistest.Must(metrics.New(metrics.Config{}))
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	must(err)
	_, err = bridge.CreateGroup(b.Context(), r, prefix, "q", "g")
	must(err)
	due := time.Now().Add(1500 * time.Millisecond) // late enough for all messages to be scheduled by then
	batch := make([]bridge.NewMessage, 1000)
	for i := range batch {
		batch[i] = bridge.NewMessage{Payload: make([]byte, 256), At: due}
	}
	for range toDeliver / len(batch) {
		_, err := client.ScheduleBatch(b.Context(), "q", batch)
		must(err)
	}
	must(client.Close())
	var handled atomic.Int64
	done := make(chan struct{})
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "q", Group: "g", Concurrency: 1000,
		Observer: observer,
		Settled: func(*bridge.Message, bridge.Settlement) {
			if handled.Add(1) == toDeliver {
				close(done)
			}
		},
		Handler: func(context.Context, *bridge.Message) error { return nil }})
	must(err)
	br, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, AnyServer: true, Observer: observer})
	must(err)
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { must(br.Run(ctx)) })
	running.Go(func() { must(w.Run(ctx)) })
	<-done
	took := time.Since(due)
	cancel()
	running.Wait()
	return took
}

// BenchmarkEvents measures the cost of reporting an event.
func BenchmarkEvents(b *testing.B) {
	s := redistest.Must(metrics.New(metrics.Config{})).Series(observe.Worker, "q", "g")
	b.Run("count", func(b *testing.B) {
		for b.Loop() {
			s.Add(observe.Delivered, 1)
		}
	})
	b.Run("time", func(b *testing.B) {
		for b.Loop() {
			s.AddTimed(observe.Handled, 1, 3*time.Millisecond)
		}
	})
	b.Run("two at a time", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				s.AddTimed(observe.Handled, 1, 3*time.Millisecond)
			}
		})
	})
}
