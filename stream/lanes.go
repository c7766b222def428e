package stream

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

const (
	// quickRead is how long a read may take on a cluster that does not wait, or not for long: a server that hangs must not keep slots
	// from the lanes of others. It doubles each time one takes longer, because what is read may be large.
	quickRead = time.Second
	// shortBlock is how long a lane waits at the server while others wait for their turn.
	shortBlock = 100 * time.Millisecond
	// lookEvery is how often, times the number of lanes, a lane without a turn looks for work, but at most every shortBlock.
	lookEvery = 2 * time.Millisecond
)

// open makes lanes for all partitions up to one, and returns those that are new.
func (w *Worker) open(upTo int) []*lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := len(w.lanes)
	for i := first; i <= upTo; i++ {
		w.lanes = append(w.lanes, w.newLane(i))
	}
	w.parts.Store(int64(len(w.lanes)))
	return w.lanes[first:]
}

// watch starts lanes for the partitions that the registry knows of, and keeps the queue registered, until ctx ends. Partition 0 does not
// wait for it: on a cluster the registry may be out of reach while the queue is not.
func (w *Worker) watch(ctx context.Context, start func(*lane)) {
	counts := lua.Counts{1}
	var registered time.Time
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		found, err := lua.ReadCounts(call, w.cfg.Client, lua.NewGlobals(w.cfg.Prefix), w.cfg.Queue)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.state.working()
			counts = counts.With(found...) // a registry that was lost forgets what is still there
			for _, l := range w.open(counts.Latest() - 1) {
				start(l)
			}
		case !lua.Temporary(err) || w.cfg.Client.Mode() == rueidis.ClientModeCluster: // else the reads report the outage
			w.state.failing(err)
		}
		if w.forgotten.Swap(false) {
			registered = time.Time{}
		}
		if time.Since(registered) >= registerInterval && w.register(ctx, counts) == nil {
			registered = time.Now()
		}
		if !sleepUntil(ctx, policyInterval, w.look) {
			return
		}
	}
}

func (w *Worker) register(ctx context.Context, counts lua.Counts) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := lua.RegisterCounts(ctx, w.cfg.Client, lua.NewGlobals(w.cfg.Prefix), map[string]lua.Counts{w.cfg.Queue: counts})
	return err
}

// registerAgain has the queue registered, and the registry read, soon: the server may be another one, or empty.
func (w *lane) registerAgain() {
	w.worker.forgotten.Store(true)
	poke(w.worker.look)
	poke(w.refresh)
}

// reservation is what a lane has for its next read.
type reservation struct {
	slots int           // zero when the worker stops
	block time.Duration // how long the read waits at the server; zero: not at all
	turn  bool          // it waits in turn with others
}

// reserve takes slots for the next read. The only lane of a worker waits with all that are free. Of several, one that has work takes all
// that are free, and does not wait; one that has none waits with few, so that no more than half of the slots wait in vain. When there are
// more lanes than that, they take turns in waiting, and look for work now and then; while one of them has work, they only look.
func (w *lane) reserve(ctx context.Context) reservation {
	parts, all := int(w.worker.parts.Load()), w.cfg.Concurrency
	switch {
	case parts == 1:
		return reservation{slots: w.slots.take(ctx, all), block: w.cfg.Block}
	case !w.idle:
		return reservation{slots: w.slots.take(ctx, all)}
	}
	turns := w.worker.turns
	scarce := parts > cap(turns)
	if scarce && w.worker.busy.Load() > 0 {
		turns = nil
	}
	look := time.NewTimer(max(shortBlock, time.Duration(parts)*lookEvery))
	defer look.Stop()
	select {
	case <-ctx.Done():
		return reservation{}
	case <-look.C:
		return reservation{slots: w.slots.take(ctx, w.share())}
	case <-turns:
	}
	r := reservation{turn: true, block: w.cfg.Block}
	if scarce {
		r.block = min(r.block, shortBlock)
	}
	r.slots = w.slots.take(ctx, w.share())
	return r
}

// wasRead ends the turn, and notes how the read went.
func (w *lane) wasRead(r reservation, found int, err error) {
	if r.turn {
		w.worker.turns <- struct{}{}
	}
	switch {
	case found > 0 && w.idle:
		w.worker.busy.Add(1)
	case found == 0 && !w.idle:
		w.worker.busy.Add(-1)
	}
	w.idle = found == 0
	if err != nil {
		w.patience = min(2*w.patience, callTimeout)
	}
}

// deadline is how long a read may take altogether: it notices a server that hangs. The timeout of the command itself is the server's.
func (w *lane) deadline(r reservation) time.Duration {
	if r.block <= shortBlock && w.cfg.Client.Mode() == rueidis.ClientModeCluster && w.worker.parts.Load() > 1 {
		return r.block + w.patience
	}
	return r.block + callTimeout
}

// read is the command for a read.
func (w *lane) read(r reservation) rueidis.Completed {
	read := w.cfg.Blocking.B().Xreadgroup().Group(w.cfg.Group, w.cfg.Consumer).Count(int64(r.slots))
	if r.block == 0 {
		return read.Streams().Key(w.keys.Stream).Id(">").Build()
	}
	return read.Block(r.block.Milliseconds()).Streams().Key(w.keys.Stream).Id(">").Build()
}

// share is how many slots a lane may wait with, of a worker that has several.
func (w *lane) share() int {
	return max(1, w.cfg.Concurrency/(2*int(w.worker.parts.Load())))
}
