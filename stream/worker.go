package stream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/duestream/duestream/internal/loop"
)

// WorkerStats counts the outcomes of a worker's deliveries since it was made.
type WorkerStats struct {
	Delivered, Acknowledged, Retried, Dead, Released, Snoozed, Skipped, Cancelled, Lost uint64
	// TimedOut counts handlers that used up their HandlerTimeout; Abandoned counts those that also ignored their
	// contexts.
	TimedOut, Abandoned uint64
}

// Worker delivers the messages of one or several queues to one group's handler, at least once. It is safe for
// concurrent use; Run may be called once.
//
// Each queue has its own queueWorker, and each partition of a queue its own partitionWorker. All of them share the
// slots.
type Worker struct {
	cfg    WorkerConfig
	pool   *pool
	queues []*queueWorker
	ran    atomic.Bool

	asked sync.Mutex // held by Alive
}

// pool is the state shared by all partitions of all queues of a worker.
type pool struct {
	slots      *slots
	waitTokens chan struct{} // a token for each partition that may wait at the server; used with several partitions

	partitions atomic.Int64 // number of partitions of all queues
	busy       atomic.Int64 // number of partitions with work

	abandoned abandonedHandlers
	stacks    stackTraces
}

func newPool(concurrency, maxAbandoned int) *pool {
	p := &pool{slots: newSlots(concurrency), waitTokens: make(chan struct{}, (concurrency+1)/2)}
	p.abandoned.limit = int64(maxAbandoned)
	for range cap(p.waitTokens) {
		p.waitTokens <- struct{}{}
	}
	return p
}

// NewWorker checks the configuration; the error names all its faults. The worker does not touch Redis before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, pool: newPool(cfg.Concurrency, cfg.MaxAbandoned)}
	w.pool.slots.wants = w.settleNow
	if len(cfg.Queues) == 0 {
		w.queues = []*queueWorker{newQueueWorker(cfg, cfg.Queue, w.pool, nil)}
		return w, nil
	}
	w.pool.slots.order = &order{strict: cfg.Strict}
	for _, q := range cfg.Queues {
		share := w.pool.slots.order.add(q.Weight)
		w.queues = append(w.queues, newQueueWorker(cfg, q.Queue, w.pool, share))
	}
	return w, nil
}

// settleNow makes all partitions settle at once the acknowledgements that wait for more.
func (w *Worker) settleNow() {
	for _, q := range w.queues {
		for _, p := range q.opened() {
			loop.Poke(p.unsettled.due)
		}
	}
}

// Consumer returns the worker's name within its group.
func (w *Worker) Consumer() string { return w.cfg.Consumer }

// Stats returns the counts so far.
func (w *Worker) Stats() WorkerStats {
	var sum WorkerStats
	for _, q := range w.queues {
		for _, p := range q.opened() {
			p.addTo(&sum)
		}
	}
	return sum
}

// Ready returns an error for each partition that the worker cannot serve now. It also returns one if Run was not called
// yet, or if abandoned handlers keep slots. It does not touch Redis.
func (w *Worker) Ready() error {
	if !w.ran.Load() {
		return errors.New("the worker has not begun to read")
	}
	errs := []error{w.pool.abandoned.trouble()}
	for _, q := range w.queues {
		for _, p := range q.opened() {
			errs = append(errs, p.trouble())
		}
	}
	return errors.Join(errs...)
}

// ErrAbandoned: handlers ignored their cancelled contexts. Their entries stay pending until the visibility timeout.
var ErrAbandoned = errors.New("handlers did not return: their entries stay pending")

// Run reads, handles and settles until ctx is cancelled. Then it stops reading, lets handlers finish, releases entries
// that no handler has begun, and returns nil: a clean stop leaves nothing pending and burns no attempt. It never gives
// up in an outage of Redis. It returns ErrAbandoned if handlers did not return in time. It does not wait for handlers
// that were abandoned before the stop (see AbandonAfter), and returns no error for them, because their deliveries are
// settled. The goroutines of these handlers may outlive Run.
func (w *Worker) Run(ctx context.Context) error {
	if w.ran.Swap(true) {
		return errors.New("worker: Run may be called once")
	}
	if w.cfg.Stopping != nil {
		defer context.AfterFunc(ctx, w.cfg.Stopping)()
	}
	errs := make([]error, len(w.queues))
	var running sync.WaitGroup
	for i, q := range w.queues {
		running.Go(func() { errs[i] = q.run(ctx) })
	}
	running.Wait()
	return errors.Join(errs...)
}
