package stream

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A single acknowledgement must go out at once. If the last call was less than settleEvery ago, acknowledgements wait
// for others, to share one call. But they must not wait while a freed slot could give a message to a handler.
func TestAcknowledgementsWaitForOthersOnlyWhenNothingWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		for _, c := range []struct {
			name       string
			acks       int           // acknowledgements that wait
			partitions int64         // partitions that share the 16 slots
			since      time.Duration // since the last call
			change     func(p *partitionWorker)
			waits      time.Duration // how long gather must wait
		}{
			{"alone", 1, 1, time.Hour, nil, 0},
			{"soon after another", 1, 1, time.Millisecond, nil, settleEvery - time.Millisecond},
			{"some, soon after another", 3, 1, 0, nil, settleEvery},
			{"less than half of the slots", 7, 1, 0, nil, settleEvery},
			{"half of the slots", 8, 1, 0, nil, 0},
			{"half of the slots of a partition", 2, 4, 0, nil, 0},
			{"a full batch", settleBatch, 1, 0, func(p *partitionWorker) { p.cfg.Concurrency = 1000 }, 0},
			{"a failure", 1, 1, 0, func(p *partitionWorker) { p.unsettled.fails = make([]*delivery, 1) }, 0},
			{"few slots", 1, 1, 0, func(p *partitionWorker) { p.cfg.Concurrency = 3 }, 0},
			{"no slot is free, and one is wanted", 1, 1, 0, func(p *partitionWorker) {
				p.pool.slots.free, p.pool.slots.waiting = 0, 1
			}, 0},
			{"a slot is wanted while gather waits", 1, 1, 0, func(p *partitionWorker) {
				p.pool.slots.take(ctx, &claim{most: 16})
				time.AfterFunc(2*time.Millisecond, func() { p.pool.slots.take(ctx, &claim{most: 1}) })
			}, 2 * time.Millisecond},
		} {
			shared := &pool{slots: newSlots(16)}
			shared.partitions.Store(c.partitions)
			p := &partitionWorker{pool: shared, cfg: WorkerConfig{Concurrency: 16}}
			p.unsettled.due, p.unsettled.acks = make(chan struct{}, 1), make([]*delivery, c.acks)
			p.lastSettled = time.Now().Add(-c.since)
			w := &Worker{queues: []*queueWorker{{partitions: []*partitionWorker{p}}}}
			shared.slots.wants = w.settleNow
			if c.change != nil {
				c.change(p)
			}
			begin := time.Now()
			p.gather(t.Context())
			redistest.Want(t, c.name+": waited", time.Since(begin), c.waits)
		}
	})
}

// Each wake of settleLoop costs the process a switch between threads. So settle wakes it only if there is something to
// decide: for the first waiting delivery, and when the next call must not wait for more.
func TestSettleWakesTheLoopOnlyWhenItMust(t *testing.T) {
	p := newQueueWorker(WorkerConfig{}.withDefaults(), "q", newPool(16, 1), nil).partitions[0]
	for i := range 8 {
		p.settle(&delivery{}, nil)
		wantWoken(t, fmt.Sprint("acknowledgement ", i+1), p, i == 0 || i == 7)
	}
	p.unsettled.acks = p.unsettled.acks[:1]
	p.settle(&delivery{}, nil)
	wantWoken(t, "acknowledgement 2 again", p, false)
	p.settle(&delivery{}, &lua.Failure{})
	wantWoken(t, "a failure", p, true)
}

// wantWoken checks whether settle has woken the loop, and takes the poke.
func wantWoken(t *testing.T, step string, p *partitionWorker, want bool) {
	t.Helper()
	redistest.Want(t, step+": woken", len(p.unsettled.due) == 1, want)
	if len(p.unsettled.due) == 1 {
		<-p.unsettled.due
	}
}
