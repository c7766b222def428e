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
// for others, to share one call. If somebody may wait for an acknowledgement, it waits only until settleAwaited after
// the last call. No acknowledgement may wait while a freed slot could give a message to a handler.
func TestAcknowledgementsWaitForOthersOnlyWhenNothingWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		add := func(field, value string, failure *lua.Failure) func(*partitionWorker) {
			return func(p *partitionWorker) {
				p.settle(&delivery{msg: Message{Extra: map[string]string{field: value}}}, failure)
			}
		}
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
			{"a failure", 1, 1, 0, add("", "", &lua.Failure{}), 0},
			{"one with a key among others", 1, 1, 0, add(lua.FieldKey, "k", nil), settleAwaited},
			{"one that asks for a result", 1, 1, 0, add(lua.FieldResult, "60000", nil), settleAwaited},
			{"few slots", 1, 1, 0, func(p *partitionWorker) { p.cfg.Concurrency = 3 }, 0},
			{"no slot is free, and one is wanted", 1, 1, 0, func(p *partitionWorker) {
				p.pool.slots.free, p.pool.slots.waiting = 0, 1
			}, 0},
			{"a slot is wanted while gather waits", 1, 1, 0, func(p *partitionWorker) {
				p.pool.slots.take(ctx, &claim{most: 16})
				time.AfterFunc(2*time.Millisecond, func() { p.pool.slots.take(ctx, &claim{most: 1}) })
			}, 2 * time.Millisecond},
		} {
			shared := newPool(16, 1)
			p := newQueueWorker(WorkerConfig{Concurrency: 16}.withDefaults(), "q", shared, nil).partitions[0]
			shared.partitions.Store(c.partitions)
			w := &Worker{queues: []*queueWorker{{partitions: []*partitionWorker{p}}}}
			shared.slots.wants = w.settleNow
			p.unsettled.called = time.Now().Add(-c.since)
			for range c.acks {
				p.settle(&delivery{}, nil)
			}
			if c.change != nil {
				c.change(p)
			}
			begin := time.Now()
			redistest.Want(t, c.name+": gathered", p.gather(ctx), true)
			redistest.Want(t, c.name+": waited", time.Since(begin), c.waits)
		}
	})
}

// Each wake of settleLoop costs the process a switch between threads. So deliveries wake settleLoop only when the next
// call must not wait for more of them. After a call has taken all deliveries, nothing wakes settleLoop.
func TestSettleWakesTheLoopOnlyWhenItMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newQueueWorker(WorkerConfig{}.withDefaults(), "q", newPool(16, 1), nil).partitions[0]
		p.settle(&delivery{}, nil)
		wantWoken(t, "the first acknowledgement", p, true)
		take := func() { p.unsettled.takeAcks(time.Now(), func(*delivery) int { return 0 }) }
		take()
		for i := range 8 {
			p.settle(&delivery{}, nil)
			wantWoken(t, fmt.Sprint("acknowledgement ", i+1), p, i == 7)
		}
		take()
		redistest.Want(t, "nothing waits: woken after", wokenAfter(p, time.Hour), time.Hour)
		p.settle(&delivery{}, nil)
		wantWoken(t, "after a pause", p, true)
		take()
		p.settle(&delivery{}, nil)
		redistest.Want(t, "soon after another: woken after", wokenAfter(p, time.Hour), settleEvery)
		p.settle(&delivery{}, &lua.Failure{})
		wantWoken(t, "a failure", p, true)
	})
}

// wokenAfter returns the time until a poke or the timer wakes settleLoop; most, if nothing wakes it earlier. It consumes
// the poke or the tick of the timer.
func wokenAfter(p *partitionWorker, most time.Duration) time.Duration {
	begin := time.Now()
	select {
	case <-p.unsettled.due:
	case <-p.unsettled.timer.C:
	case <-time.After(most):
	}
	return time.Since(begin)
}

// wantWoken checks whether a poke or the timer wakes settleLoop now. It consumes the poke and the tick of the timer.
func wantWoken(t *testing.T, step string, p *partitionWorker, want bool) {
	t.Helper()
	synctest.Wait()
	woken := false
	for range 2 {
		select {
		case <-p.unsettled.due:
			woken = true
		case <-p.unsettled.timer.C:
			woken = true
		default:
		}
	}
	redistest.Want(t, step+": woken", woken, want)
}
