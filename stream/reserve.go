package stream

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const (
	// quickRead is the first time limit, on a cluster, of a read that waits at the server for no or a short time: a
	// server that hangs must not keep slots from other partitions. It doubles each time a read takes longer, because
	// the entries may be large.
	quickRead = time.Second
	// shortBlock is the BLOCK of a partition while others wait for their turn.
	shortBlock = 100 * time.Millisecond
	// lookEvery, times the number of partitions, is the time between two reads of a partition without a turn; at least
	// shortBlock.
	lookEvery = 2 * time.Millisecond
)

// open makes partition workers for all partitions up to one, and returns the new ones.
func (w *Worker) open(upTo int) []*partitionWorker {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := len(w.served)
	for i := first; i <= upTo; i++ {
		w.served = append(w.served, w.newPartitionWorker(i))
	}
	w.parts.Add(int64(len(w.served) - first))
	return w.served[first:]
}

// watch starts partition workers for the partitions in the registry, and keeps the queue registered, until ctx ends.
// Partition 0 does not wait for it: on a cluster the registry may be out of reach while the queue is not.
func (w *Worker) watch(ctx context.Context, start func(*partitionWorker)) {
	counts := lua.Counts{1}
	var registered time.Time
	known := sync.OnceFunc(func() { close(w.counted) })
	for {
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		w.watches.begin()
		found, err := lua.ReadCounts(call, w.cfg.Client, lua.NewGlobals(w.cfg.Prefix), w.cfg.Queue)
		w.watches.end()
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.state.Report(nil)
			known()
			counts = counts.With(found...) // a registry that was lost may lack counts
			for _, l := range w.open(counts.Latest() - 1) {
				start(l)
			}
		case !lua.Temporary(err) || w.cfg.Client.Mode() == rueidis.ClientModeCluster: // else the reads report the outage
			w.state.Report(err)
		}
		if w.forgotten.Swap(false) {
			registered = time.Time{}
		}
		if time.Since(registered) >= registerInterval {
			if found, err = w.register(ctx, counts); err == nil {
				counts, registered = found, time.Now() // without counts of a deleted queue
			}
		}
		if !loop.SleepUntil(ctx, PolicyInterval, w.look) {
			return
		}
	}
}

// register registers the queue, and returns the counts that the registry then has.
func (w *Worker) register(ctx context.Context, counts lua.Counts) (lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	w.watches.begin()
	defer w.watches.end()
	current, err := lua.SyncCounts(ctx, w.cfg.Client, lua.NewGlobals(w.cfg.Prefix),
		map[string]lua.Counts{w.cfg.Queue: counts})
	return current[w.cfg.Queue], err
}

// registerAgain requests a registration and a read of the registry: the server may be another one, or empty.
func (p *partitionWorker) registerAgain() {
	p.worker.forgotten.Store(true)
	loop.Poke(p.worker.look)
	loop.Poke(p.refresh)
}

// reservation is what a partition's next read may use.
type reservation struct {
	slots int           // zero when the worker stops
	block time.Duration // BLOCK of the read; zero = it does not wait
	turn  bool          // it holds a turn to wait at the server
}

// reserve takes slots for the next read. A worker's only partition waits at the server with all free slots. Of several
// partitions, one with work takes all free slots and does not wait. One without work waits with few, so that no more
// than half of the slots wait in vain. If there are more partitions than half of the slots, they take turns in waiting,
// and look for work at intervals; while one of them has work, the others only look.
func (p *partitionWorker) reserve(ctx context.Context) reservation {
	parts, all := int(p.worker.parts.Load()), p.cfg.Concurrency
	switch {
	case parts == 1:
		return reservation{slots: p.take(ctx, all, needWork), block: p.cfg.Block}
	case !p.idle:
		return reservation{slots: p.take(ctx, all, needWork)}
	}
	turns := p.worker.turns
	scarce := parts > cap(turns)
	if scarce && p.worker.busy.Load() > 0 {
		turns = nil
	}
	look := time.NewTimer(max(shortBlock, time.Duration(parts)*lookEvery))
	defer look.Stop()
	select {
	case <-ctx.Done():
		return reservation{}
	case <-look.C:
		return reservation{slots: p.take(ctx, p.share(), needLook)}
	case <-turns:
	}
	r := reservation{turn: true, block: p.cfg.Block}
	if scarce {
		r.block = min(r.block, shortBlock)
	}
	r.slots = p.take(ctx, p.share(), needLook)
	return r
}

// wasRead ends the turn, and notes the outcome of the read.
func (p *partitionWorker) wasRead(r reservation, found int, err error) {
	if r.turn {
		p.worker.turns <- struct{}{}
	}
	p.setIdle(found == 0)
	if found > 0 && p.worker.line != nil {
		p.slots.changed(p.worker.line, 0, found)
	}
	if err != nil {
		p.patience = min(2*p.patience, loop.CallTimeout)
	}
}

// deadline returns the time limit of a read, so that a hanging server is noticed. The server itself ends BLOCK.
func (p *partitionWorker) deadline(r reservation) time.Duration {
	if r.block <= shortBlock && p.cfg.Client.Mode() == rueidis.ClientModeCluster && p.worker.parts.Load() > 1 {
		return r.block + p.patience
	}
	return r.block + loop.CallTimeout
}

// read builds the command of a read.
func (p *partitionWorker) read(r reservation) rueidis.Completed {
	read := p.cfg.Blocking.B().Xreadgroup().Group(p.cfg.Group, p.cfg.Consumer).Count(int64(r.slots))
	if r.block == 0 {
		return read.Streams().Key(p.keys.Stream).Id(">").Build()
	}
	return read.Block(r.block.Milliseconds()).Streams().Key(p.keys.Stream).Id(">").Build()
}

// share returns the number of slots with which a partition may wait when the worker has several partitions.
func (p *partitionWorker) share() int {
	return max(1, p.cfg.Concurrency/(2*int(p.worker.parts.Load())))
}
