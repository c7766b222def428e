package metrics_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// BenchmarkDrainAndDeliver takes turns without and with metrics: how long 20,000 messages take from the moment that all are due
// until all are handled and acknowledged. on/off is the throughput with metrics in relation to that without, of all rounds but
// the first pair, which warms up.
func BenchmarkDrainAndDeliver(b *testing.B) {
	server := redistest.Shared(b)
	r, err := bridge.Dial(b.Context(), server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var spent [2]time.Duration
	rounds := 0
	for b.Loop() {
		for i := range 2 {
			on := (i + rounds) % 2
			took := deliverAll(b, r, server.Prefix(b), on == 1)
			if rounds > 0 {
				spent[on] += took
			}
		}
		rounds++
	}
	if rounds > 1 {
		b.ReportMetric(spent[0].Seconds()/spent[1].Seconds(), "on/off")
		b.ReportMetric(float64((rounds-1)*toDeliver)/spent[1].Seconds(), "msg/s")
	}
}

const toDeliver = 20_000

func deliverAll(b *testing.B, r *bridge.Redis, prefix string, on bool) time.Duration {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var observer bridge.Observer
	if on {
		observer = metrics.New(metrics.Config{})
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	must(err)
	_, err = bridge.CreateGroup(b.Context(), r, prefix, "q", "g")
	must(err)
	due := time.Now().Add(1500 * time.Millisecond)
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
