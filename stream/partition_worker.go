package stream

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// partitionWorker serves one partition of a worker's queue: it reads, runs handlers, and extends and settles their
// deliveries.
type partitionWorker struct {
	queue     *queueWorker
	partition int
	cfg       WorkerConfig
	keys      lua.Keys
	log       *slog.Logger

	pool    *pool
	held    holdings
	runners runners
	policy  atomic.Pointer[policy.Policy]
	breaks  atomic.Uint64 // number of connection breaks, after which an entry ID may name another message: see heldAt
	state   loop.Reporter

	stopping <-chan struct{} // closed when Run's context is cancelled

	// Settlements: see settleLoop.
	unsettled     unsettled
	settleFailing atomic.Bool  // a call failed, and slotless is not yet zero: the partition does not read
	slotless      atomic.Int64 // unsettled deliveries whose slots were freed

	// Used by the read loop only.
	joined      bool          // the group has been found or created
	created     bool          // this worker created the group
	joinedAt    view.EntryID  // the group's last delivered entry when this worker joined
	readInDoubt bool          // a read failed, and the server may still execute it
	cutOff      bool          // the stop interrupted the last read, and the server may still execute it
	idle        bool          // the last read found no entries
	askedAt     time.Time     // when a busy worker last asked for a read of the policy
	patience    time.Duration // on a cluster: time limit of a read with no or a short BLOCK, not counting BLOCK

	// A step that exceeds its time limit is followed by smaller ones: the entries may be large, and the link slow.
	readStep  int            // greatest number of entries of the next read
	fetchStep int            // greatest number of entries of the next fetch
	late      map[string]int // by entry ID: how often the entry was fetched alone and came too late

	lastLook uint64 // see claim.lastLook

	tell observe.Series // nil: there is no observer

	reads, extends, refreshes, settles pulse

	policyChanged chan struct{} // poked
	refresh       chan struct{} // poked
	resumed       chan struct{} // poked: the policy no longer pauses it, or settlements work again

	// Counts: see WorkerStats.
	delivered, timedOut, abandoned                 atomic.Uint64
	acknowledged, retried, dead, released, snoozed atomic.Uint64
	skipped, cancelled, lost                       atomic.Uint64
}

func newPartitionWorker(q *queueWorker, partition int) *partitionWorker {
	name := lua.PartitionName(q.cfg.Queue, partition)
	p := &partitionWorker{
		queue:         q,
		partition:     partition,
		cfg:           q.cfg,
		keys:          lua.NewKeys(q.cfg.Prefix, name).As(lua.ActorWorker + " " + q.cfg.Consumer),
		log:           q.log,
		pool:          q.pool,
		idle:          true,
		patience:      quickRead,
		readStep:      q.cfg.Concurrency,
		fetchStep:     fetchBatch,
		late:          map[string]int{},
		tell:          observe.SeriesOf(q.cfg.Observer, observe.Worker, q.cfg.Queue, q.cfg.Group),
		unsettled:     newUnsettled(),
		policyChanged: make(chan struct{}, 1),
		refresh:       make(chan struct{}, 1),
		resumed:       make(chan struct{}, 1),
	}
	if q.share != nil {
		p.setIdle(false) // counts as having work until its first read shows whether it has
	}
	if partition > 0 {
		p.log = q.log.With(slog.Int("partition", partition))
	}
	p.state = loop.Reporter{Log: p.log, Activity: "worker"}
	p.runners.handle = p.handle
	defaults := policy.Default()
	p.policy.Store(&defaults)
	return p
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

// trouble returns an error if the partition's last read or settlement failed.
func (p *partitionWorker) trouble() error {
	why := p.state.Trouble()
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s: the worker is failing: %s", lua.PartitionName(p.cfg.Queue, p.partition), why)
}

// run serves the partition until ctx is cancelled, and then lets handlers finish and releases its entries. It returns
// the number of handlers that did not return.
func (p *partitionWorker) run(ctx context.Context) (left int) {
	p.stopping = ctx.Done()
	// Handlers, extends and acknowledgements outlive ctx; hard ends them.
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	var loops sync.WaitGroup
	looping, endLoops := context.WithCancel(hard)
	loops.Go(func() { p.extendLoop(looping) })
	loops.Go(func() { p.refreshLoop(looping) })
	loops.Go(func() { p.settleLoop(looping) })

	p.readLoop(ctx, hard)

	left = p.awaitHandlers(stop)
	endLoops()
	loops.Wait()
	p.leave()
	return left
}
