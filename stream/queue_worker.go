package stream

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/duestream/duestream/internal/loop"
)

// queueWorker serves one queue of a worker: it runs a partitionWorker for each partition of the queue, and watches the
// registry for further partitions.
type queueWorker struct {
	cfg      WorkerConfig // with the name of this queue in Queue, even if the worker has several queues
	log      *slog.Logger
	pool     *pool
	share    *queueShare // nil = the worker has only this queue
	floods   loop.Floods // limits log lines about single messages
	registry registryWatch
	rate     *groupRate // nil = there is no rate

	mu         sync.Mutex
	partitions []*partitionWorker
}

// newQueueWorker returns the worker of one queue. It shares a pool with the workers of other queues.
func newQueueWorker(cfg WorkerConfig, queue string, p *pool, share *queueShare) *queueWorker {
	cfg.Queue = queue
	q := &queueWorker{cfg: cfg, pool: p, share: share, rate: newGroupRate(cfg)}
	q.log = cfg.Logger.With(slog.String("queue", cfg.Queue), slog.String("group", cfg.Group))
	q.registry = registryWatch{
		state: loop.Reporter{Log: q.log, Activity: "reading the number of partitions"},
		poked: make(chan struct{}, 1),
		read:  make(chan struct{}),
	}
	q.open(0)
	return q
}

// open makes partition workers for all partitions up to and including upTo, and returns the new workers.
func (q *queueWorker) open(upTo int) []*partitionWorker {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := len(q.partitions)
	for i := first; i <= upTo; i++ {
		q.partitions = append(q.partitions, newPartitionWorker(q, i))
	}
	q.pool.partitions.Add(int64(len(q.partitions) - first))
	return q.partitions[first:]
}

// opened returns the workers of all partitions that are known so far.
func (q *queueWorker) opened() []*partitionWorker {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.partitions)
}

// run is Worker.Run for one queue.
func (q *queueWorker) run(ctx context.Context) error {
	defer q.floods.Close()
	var running sync.WaitGroup
	var left atomic.Int64
	start := func(p *partitionWorker) { running.Go(func() { left.Add(int64(p.run(ctx))) }) }
	start(q.opened()[0])
	q.watchRegistry(ctx, start)
	running.Wait()
	if n := left.Load(); n > 0 {
		return fmt.Errorf("stop %s/%s: %d of them: %w", q.cfg.Queue, q.cfg.Group, n, ErrAbandoned)
	}
	return nil
}
