package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// registerInterval is the time between two registrations of a worker's queue.
const registerInterval = time.Minute

// registryWatch is the state of the loop that reads the partition counts of a queue from the registry.
type registryWatch struct {
	state     loop.Reporter
	pulse     pulse
	poked     chan struct{} // read the registry now
	forgotten atomic.Bool   // register the queue again
	read      chan struct{} // closed after the first successful read
}

// watchRegistry starts partition workers for the partitions in the registry, and keeps the queue registered, until ctx
// ends. Partition 0 does not wait for the registry: on a cluster the registry may be out of reach while the queue is
// not.
func (q *queueWorker) watchRegistry(ctx context.Context, start func(*partitionWorker)) {
	watch := &q.registry
	counts := lua.Counts{1}
	var registered time.Time
	wasRead := sync.OnceFunc(func() { close(watch.read) })
	for {
		found, err := q.readCounts(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			watch.state.Report(nil)
			wasRead()
			counts = counts.With(found...) // after a loss of data the registry may lack counts
			for _, p := range q.open(counts.Latest() - 1) {
				start(p)
			}
		case !lua.Temporary(err) || q.cfg.Client.Mode() == rueidis.ClientModeCluster:
			watch.state.Report(err) // on one server the reads report an outage
		}
		if watch.forgotten.Swap(false) {
			registered = time.Time{}
		}
		if time.Since(registered) >= registerInterval {
			if found, err = q.register(ctx, counts); err == nil {
				counts, registered = found, time.Now() // found lacks the counts from before a deletion of the queue
			}
		}
		if !loop.SleepUntil(ctx, policy.RefreshInterval, watch.poked) {
			return
		}
	}
}

func (q *queueWorker) readCounts(ctx context.Context) (lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	q.registry.pulse.begin()
	defer q.registry.pulse.end()
	return lua.ReadCounts(ctx, q.cfg.Client, lua.NewGlobals(q.cfg.Prefix), q.cfg.Queue)
}

// register registers the queue, and returns the counts that the registry then has.
func (q *queueWorker) register(ctx context.Context, counts lua.Counts) (lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	q.registry.pulse.begin()
	defer q.registry.pulse.end()
	current, err := lua.SyncCounts(ctx, q.cfg.Client, lua.NewGlobals(q.cfg.Prefix),
		map[string]lua.Counts{q.cfg.Queue: counts})
	return current[q.cfg.Queue], err
}

// registerAgain requests a registration and a read of the registry: the server may be another one, or empty.
func (q *queueWorker) registerAgain() {
	q.registry.forgotten.Store(true)
	loop.Poke(q.registry.poked)
}
