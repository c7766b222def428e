package stream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A single acknowledgement goes out at once. Later ones wait for others, but never while that could keep a message from
// a handler.
func TestAcknowledgementsWaitForOthersOnlyWhenNothingWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		for _, c := range []struct {
			name       string
			acks       int
			partitions int64
			since      time.Duration // since the last call
			change     func(p *partitionWorker)
			waits      time.Duration
		}{
			{"alone", 1, 1, time.Hour, nil, 0},
			{"soon after another", 1, 1, time.Millisecond, nil, settleEvery - time.Millisecond},
			{"some, soon after another", 3, 1, 0, nil, settleEvery},
			{"a quarter of the slots", 4, 1, 0, nil, 0},
			{"a quarter of the slots of a partition", 1, 4, 0, nil, 0},
			{"a failure", 1, 1, 0, func(p *partitionWorker) { p.settle.fails = make([]failedDelivery, 1) }, 0},
			{"few slots", 1, 1, 0, func(p *partitionWorker) { p.cfg.Concurrency = 7 }, 0},
			{"none free, and one is wanted", 1, 1, 0, func(p *partitionWorker) { p.slots.free, p.slots.waiting = 0, 1 }, 0},
			{"one is wanted meanwhile", 1, 1, 0, func(p *partitionWorker) {
				p.slots.take(ctx, 16)
				time.AfterFunc(2*time.Millisecond, func() { p.slots.take(ctx, 1) })
			}, 2 * time.Millisecond},
		} {
			w := &Worker{pool: &pool{slots: newSlots(16)}}
			w.parts.Store(c.partitions)
			p := &partitionWorker{worker: w, slots: w.slots, cfg: WorkerConfig{Concurrency: 16}}
			p.settle = settler{w: p, wake: make(chan struct{}, 1), acks: make([]*delivery, c.acks),
				last: time.Now().Add(-c.since)}
			w.served, w.slots.wants = []*partitionWorker{p}, w.settleNow
			if c.change != nil {
				c.change(p)
			}
			begin := time.Now()
			p.settle.gather(t.Context())
			redistest.Want(t, c.name+": waited", time.Since(begin), c.waits)
		}
	})
}
