package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/duestream/duestream/lua"
)

// MaxQueues is the greatest number of queues of one worker.
const MaxQueues = 100

// WorkerQueue is one of several queues of a worker.
type WorkerQueue struct {
	Queue string
	// Weight is the queue's share of deliveries while others have a backlog, too: with weights 3 and 1 the first queue
	// gets three of four. Default 1, at most 1,000. Must be 0 with Strict.
	Weight int
}

func (c WorkerConfig) validateQueues() error {
	if len(c.Queues) == 0 {
		errs := []error{lua.CheckQueue(c.Queue)}
		if c.Strict {
			errs = append(errs, lua.Invalid("strict", "true", "needs several queues"))
		}
		return errors.Join(errs...)
	}
	var errs []error
	if c.Queue != "" {
		errs = append(errs, lua.Invalid("queue", c.Queue, "must be empty when Queues are given"))
	}
	if len(c.Queues) > MaxQueues {
		errs = append(errs, lua.Invalid("queues", fmt.Sprint(len(c.Queues)), "must be at most %d", MaxQueues))
	}
	seen := map[string]bool{}
	for _, q := range c.Queues {
		errs = append(errs, lua.CheckQueue(q.Queue))
		if seen[q.Queue] {
			errs = append(errs, lua.Invalid("queues", q.Queue, "must be named once"))
		}
		seen[q.Queue] = true
		switch {
		case c.Strict && q.Weight != 0:
			errs = append(errs, lua.Invalid("weight", fmt.Sprint(q.Weight), "must be 0 where the order is strict"))
		case q.Weight < 0 || q.Weight > 1000:
			errs = append(errs, lua.Invalid("weight", fmt.Sprint(q.Weight), "must be between 1 and 1000"))
		}
	}
	return errors.Join(errs...)
}

// pool is the state shared by all partitions of all queues of a worker.
type pool struct {
	slots *slots
	turns chan struct{} // one token per partition that may wait at the server with slots; used with several partitions
	parts atomic.Int64  // number of partitions
	busy  atomic.Int64  // number of partitions with work

	abandoned abandonedHandlers
	stacks    stackTraces
}

func newPool(concurrency, maxAbandoned int) *pool {
	p := &pool{slots: newSlots(concurrency), turns: make(chan struct{}, (concurrency+1)/2)}
	p.abandoned.limit = int64(maxAbandoned)
	for range cap(p.turns) {
		p.turns <- struct{}{}
	}
	return p
}

// take takes slots for a read. With several queues it observes their order: see slots.take and slots.takeInTurn.
func (p *partitionWorker) take(ctx context.Context, most int, why need) int {
	if p.worker.line == nil {
		return p.slots.take(ctx, most)
	}
	return p.slots.takeInTurn(ctx, &claim{
		line: p.worker.line, why: why, most: most, looked: &p.looked, got: make(chan int, 1),
	})
}

// setIdle notes whether the partition's last read found nothing or failed: a failing partition must not hold up other
// queues.
func (p *partitionWorker) setIdle(idle bool) {
	if idle == p.idle {
		return
	}
	p.idle = idle
	by := 1
	if idle {
		by = -1
	}
	p.worker.busy.Add(int64(by))
	if p.worker.line != nil {
		p.slots.changed(p.worker.line, by, 0)
	}
}
