package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// lateRead is the time within which a read that was cut off may still reach the server, over its closed connection.
const lateRead = 100 * time.Millisecond

// partitionWorker serves one partition of a worker's queue: it reads, runs handlers, and extends and settles their
// deliveries.
type partitionWorker struct {
	worker    *Worker
	partition int
	cfg       WorkerConfig
	keys      lua.Keys
	log       *slog.Logger

	slots   *slots // the worker's
	held    holdings
	runners runners
	settle  settler
	policy  atomic.Pointer[Policy]
	broken  atomic.Uint64 // number of broken connections: entry IDs from before one are compared with message IDs
	state   loop.Reporter

	// Used by the read loop only.
	joined   bool          // the group has been found or created
	created  bool          // this worker created the group
	start    view.EntryID  // last entry delivered to the group at that time
	doubt    bool          // a read failed, and the server may still execute it
	cutOff   bool          // the stop interrupted the last read, and the server may still execute it
	idle     bool          // the last read found nothing
	lookedAt time.Time     // when a busy worker last asked for a read of the policy
	patience time.Duration // time limit of a read with no or a short BLOCK

	// A step that exceeds its time limit is followed by smaller ones: the entries may be large, and the link slow.
	readStep  int            // most entries of the next read
	fetchStep int            // most entries of the next fetch
	failed    map[string]int // entry → how often it was fetched alone and came too late

	looked uint64 // for the claims of the read loop: see claim.looked

	tell observe.Series // nil = no observer

	reads, extends, looks pulse

	policyChanged chan struct{} // poked
	refresh       chan struct{} // poked
	resumed       chan struct{} // poked: the policy no longer pauses it, or settlements work again

	delivered, acknowledged, retried, dead, released, snoozed, skipped, cancelled, lost, timedOut, abandoned atomic.Uint64
}

func (w *Worker) newPartitionWorker(partition int) *partitionWorker {
	l := &partitionWorker{
		worker: w, partition: partition, cfg: w.cfg,
		keys: lua.NewKeys(w.cfg.Prefix, lua.PartitionName(w.cfg.Queue, partition)).As(lua.ActorWorker + " " + w.cfg.Consumer),
		log:  w.log, slots: w.slots, idle: true, patience: quickRead, readStep: w.cfg.Concurrency,
		fetchStep: fetchBatch, failed: map[string]int{}, policyChanged: make(chan struct{}, 1),
		refresh: make(chan struct{}, 1), resumed: make(chan struct{}, 1),
		tell: observe.SeriesOf(w.cfg.Observer, observe.Worker, w.cfg.Queue, w.cfg.Group),
	}
	if w.line != nil {
		l.setIdle(false) // unknown until its first read
	}
	if partition > 0 {
		l.log = w.log.With(slog.Int("partition", partition))
	}
	l.state = loop.Reporter{Log: l.log, Activity: "worker"}
	l.runners.handle = l.handle
	l.settle = settler{w: l, wake: make(chan struct{}, 1)}
	defaults := DefaultPolicy()
	l.policy.Store(&defaults)
	return l
}

func (p *partitionWorker) addTo(sum *WorkerStats) {
	sum.Delivered += p.delivered.Load()
	sum.Acknowledged += p.acknowledged.Load()
	sum.Retried += p.retried.Load()
	sum.Dead += p.dead.Load()
	sum.Released += p.released.Load()
	sum.Snoozed += p.snoozed.Load()
	sum.Skipped += p.skipped.Load()
	sum.Cancelled += p.cancelled.Load()
	sum.Lost += p.lost.Load()
	sum.TimedOut += p.timedOut.Load()
	sum.Abandoned += p.abandoned.Load()
}

// run serves the partition until ctx is cancelled, and then stops in order. It returns the number of handlers that did
// not return.
func (p *partitionWorker) run(ctx context.Context) (left int) {
	// Handlers, extends and acknowledgements outlive ctx; hard ends them.
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	var keepers sync.WaitGroup
	upkeep, endUpkeep := context.WithCancel(hard)
	keepers.Go(func() { p.extendLoop(upkeep) })
	keepers.Go(func() { p.refreshLoop(upkeep) })
	keepers.Go(func() { p.settle.run(upkeep) })

	p.readLoop(ctx, hard)

	left = p.drainHandlers(stop)
	endUpkeep()
	keepers.Wait()
	p.leave()
	return left
}

// drainHandlers waits until handlers have returned and are settled: for ShutdownTimeout, then for CancelGrace with
// their contexts cancelled. It returns how many are left.
func (p *partitionWorker) drainHandlers(stop context.CancelCauseFunc) int {
	soft := time.NewTimer(max(0, p.cfg.ShutdownTimeout))
	defer soft.Stop()
	select {
	case <-p.held.empty():
		return 0
	case <-soft.C:
	}
	p.held.cancelAll(ErrStopping)
	grace := time.NewTimer(p.cfg.CancelGrace)
	defer grace.Stop()
	select {
	case <-p.held.empty():
		return 0
	case <-grace.C:
	}
	left := p.held.list()
	for _, d := range left {
		p.note(slog.LevelWarn, "handler did not return: its entry stays pending until the visibility timeout", d)
	}
	stop(ErrStopping)
	return len(left)
}

// leave releases entries that a cut-off read delivered to this consumer but the worker never saw, and removes the
// consumer if it holds nothing. If this fails, the reclaimer does it. A worker that has not joined its group got no
// entries: those of its consumer name belong to an earlier worker, or to another one of the same name.
func (p *partitionWorker) leave() {
	if !p.joined {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if p.cutOff {
		loop.Sleep(ctx, lateRead)
	}
	err := p.releaseUnseen(ctx)
	if err == nil {
		_, err = lua.DropConsumers(ctx, p.cfg.Client, p.keys, p.cfg.Group, []string{p.cfg.Consumer})
	}
	if err != nil && !errors.Is(err, lua.ErrNoGroup) {
		p.log.Warn("could not take leave: what this consumer holds is reclaimed after the visibility timeout",
			slog.Any("error", err))
	}
}

// releaseUnseen releases, in bounded calls, the pending entries of this consumer that it does not hold.
func (p *partitionWorker) releaseUnseen(ctx context.Context) error {
	for {
		unseen, err := p.unseen(ctx, releaseBatch)
		if err != nil || len(unseen) == 0 {
			return err
		}
		failures := make([]lua.Failure, len(unseen))
		for i, entry := range unseen {
			failures[i] = lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionRelease, Delay: -1}
		}
		outcomes, err := lua.Retry(ctx, p.cfg.Client, p.keys, p.cfg.Group, p.policy.Load().Attempts(), failures)
		if err != nil {
			return err
		}
		for _, outcome := range outcomes {
			switch outcome {
			case lua.Released:
				p.released.Add(1)
				p.told(observe.Released, 1)
			case lua.Stuck: // else this loop would find the entry again and again
				return errors.New("the stream of dead letters refuses an entry")
			}
		}
	}
}

// handle runs the handler on one delivery, and settles the delivery by its result.
func (p *partitionWorker) handle(d *delivery) {
	err, panicked := errGoexit, false
	defer func() { p.returned(d, err, panicked) }() // deferred, because nothing else runs after runtime.Goexit
	p.begin(d)
	p.tellHandling(d)
	panicked, err = p.call(d)
}

var errGoexit = errors.New("handler ended its goroutine")

func (p *partitionWorker) call(d *delivery) (panicked bool, err error) {
	defer func() {
		if what := recover(); what != nil {
			panicked = true
			stack := debug.Stack()
			err = fmt.Errorf("panic: %v\n%s", what, stack)
			p.note(slog.LevelError, "handler panicked", d, slog.Any("panic", what), slog.String("stack", string(stack)))
		}
	}()
	return false, p.cfg.Handler(d.ctx, &d.handling.message)
}

func (p *partitionWorker) finish(d *delivery, err error) {
	trace := d.settledMessage().Trace
	switch {
	case d.isLost():
		p.lost.Add(1)
		p.note(slog.LevelInfo, "finished after the delivery was lost: no effect", d)
		tally := p.newTally()
		p.settled(d, Lost, true, tally)
		p.tellSettled(tally)
		p.drop(d)
	case d.isCancelled():
		p.settle.fail(d, lua.Failure{Action: lua.ActionCancel, Delay: -1, Trace: trace})
	case err == nil:
		p.settle.ack(d)
	case d.handling.wasAbandoned(), errors.Is(context.Cause(d.ctx), ErrHandlerTimeout):
		p.settle.fail(d, d.timeoutFailure(err, trace))
	case errors.Is(context.Cause(d.ctx), ErrStopping), errors.Is(context.Cause(d.ctx), ErrUnreachable):
		// The stop or an outage interrupted the handler; it did not fail. So no attempt is counted.
		p.settle.fail(d, lua.Failure{Action: lua.ActionRelease, Delay: -1, Trace: trace})
	default:
		f := FailureOf(err)
		f.Trace = trace
		p.settle.fail(d, f)
	}
}
