package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
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

// readLoop reads as many new entries as there are free slots, until ctx ends. After a broken connection it first
// extends held entries, and takes up entries that were delivered but never seen.
func (p *partitionWorker) readLoop(ctx, hard context.Context) {
	wait := loop.NewBackoff(2 * time.Second)
	rejoined, away := false, false
	defer p.setIdle(true)
	for ctx.Err() == nil {
		err := error(nil)
		if !rejoined {
			err = p.rejoin(ctx, hard)
			rejoined = err == nil
		}
		if err == nil {
			err = p.readOnce(ctx, hard)
		}
		switch {
		case ctx.Err() != nil:
			p.cutOff = err != nil
			return
		case errors.Is(err, lua.ErrNoGroup):
			err = p.recreateGroup(ctx)
			if err == nil {
				continue
			}
		case err == nil:
			wait.Reset()
			p.state.Report(nil)
			if away {
				away = false
				p.report(observe.WorkerReconnect, 1)
			}
			if p.readInDoubt { // the server may have executed a failed read after the worker looked for its entries
				p.readInDoubt, rejoined = false, false
			}
			continue
		}
		p.setIdle(true)
		rejoined = false
		p.readInDoubt = true
		away = away || lua.Temporary(err)
		p.breaks.Add(1)
		p.state.Report(err)
		loop.Sleep(ctx, wait.NextBackOff())
	}
}

// readOnce waits for free slots and then for entries, and starts a handler for each entry.
func (p *partitionWorker) readOnce(ctx, hard context.Context) error {
	if p.policy.Load().HeldWorkers {
		p.waitWhilePaused(ctx)
		return nil
	}
	admitted, err := p.admitted(ctx)
	if err != nil {
		return err
	}
	if admitted == 0 { // ctx has ended, or Admit does not wait
		loop.Sleep(ctx, shortBlock)
		return nil
	}
	if p.policy.Load().HeldWorkers { // Admit may have waited for hours
		return nil
	}
	r := p.reserve(ctx)
	if most := min(admitted, p.readStep); r.slots > most {
		p.pool.slots.put(r.slots - most)
		r.slots = most
	}
	if r.slots == 0 {
		return nil
	}
	if p.settleFailing.Load() { // the slots may be those of this partition's own unsettled deliveries: see returnSlots
		p.pool.slots.put(r.slots)
		p.wasRead(r, 0, nil)
		loop.SleepUntil(ctx, quickRefresh, p.resumed)
		return nil
	}
	entries, err := p.read(ctx, r)
	p.wasRead(r, len(entries), err)
	p.readStep = nextStep(p.readStep, r.slots, p.cfg.Concurrency, err)
	used := p.startAll(p.deliveries(hard, entries))
	p.pool.slots.put(r.slots - used)
	if len(entries) > 0 {
		p.refreshWhileBusy()
	}
	return err
}

// admitted returns how many messages may be read; 0 if ctx has ended.
func (p *partitionWorker) admitted(ctx context.Context) (int, error) {
	most := p.cfg.Concurrency
	if rate := p.queue.rate; rate != nil {
		if p.idle { // other partitions and workers wait for messages, too, and only some of them will get one
			most = 1
		}
		// While the partition waits, it counts as idle, because it must not hold up other queues.
		n, err := rate.admit(ctx, p.keys.Stream, most, func() { p.setIdle(true) })
		if n == 0 || err != nil {
			return 0, err
		}
		most = n
	}
	if p.cfg.Admit == nil {
		return most, nil
	}
	n, err := p.cfg.Admit(ctx, most)
	return min(max(n, 0), most), err
}

// reservation holds the slots and the longest wait of a partition's next read.
type reservation struct {
	slots    int           // zero when the worker stops
	block    time.Duration // BLOCK of the read; zero: the read does not wait
	hasToken bool          // the reservation holds one of pool.waitTokens
}

// reserve takes slots for the next read. If the worker has only one partition, its read waits at the server with all
// free slots. If the worker has several, a partition with work takes all free slots, and its read does not wait. A
// partition without work waits with few slots, so that no more than half of the slots wait in vain. If there are more
// partitions than half of the slots, they take turns in waiting, and look for work at intervals. While one of them has
// work, the others only look.
func (p *partitionWorker) reserve(ctx context.Context) reservation {
	parts, all := int(p.pool.partitions.Load()), p.cfg.Concurrency
	switch {
	case parts == 1:
		return reservation{slots: p.take(ctx, all, needWork), block: p.cfg.Block}
	case !p.idle:
		return reservation{slots: p.take(ctx, all, needWork)}
	}
	tokens := p.pool.waitTokens
	scarce := parts > cap(tokens)
	if scarce && p.pool.busy.Load() > 0 {
		tokens = nil
	}
	look := time.NewTimer(max(shortBlock, time.Duration(parts)*lookEvery))
	defer look.Stop()
	select {
	case <-ctx.Done():
		return reservation{}
	case <-look.C:
		return reservation{slots: p.take(ctx, p.waitingSlots(), needLook)}
	case <-tokens:
	}
	r := reservation{hasToken: true, block: p.cfg.Block}
	if scarce {
		r.block = min(r.block, shortBlock)
	}
	r.slots = p.take(ctx, p.waitingSlots(), needLook)
	return r
}

// take takes at most most free slots. It waits until there are any.
func (p *partitionWorker) take(ctx context.Context, most int, need need) int {
	return p.pool.slots.take(ctx, &claim{share: p.queue.share, need: need, most: most, lastLook: &p.lastLook})
}

// waitingSlots returns the number of slots with which a partition may wait when the worker has several partitions.
func (p *partitionWorker) waitingSlots() int {
	return max(1, p.cfg.Concurrency/(2*int(p.pool.partitions.Load())))
}

// read reads at most as many new entries as the reservation has slots. It reads one stream, so that COUNT is exact.
func (p *partitionWorker) read(ctx context.Context, r reservation) ([]rueidis.XRangeSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, p.readTimeout(r))
	defer cancel()
	p.reads.begin()
	defer p.reads.end()
	if r.hasToken && p.cfg.IdleSlots != nil {
		p.cfg.IdleSlots(r.slots)
		defer p.cfg.IdleSlots(-r.slots)
	}
	reply, err := p.cfg.Blocking.Do(ctx, p.readCommand(r)).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("read %s/%s: %w", p.cfg.Queue, p.cfg.Group, lua.Classify("XREADGROUP", err))
	}
	return reply[p.keys.Stream], nil
}

// readTimeout returns the time limit of a read, so that a hanging server is noticed. The server itself ends BLOCK.
func (p *partitionWorker) readTimeout(r reservation) time.Duration {
	if r.block <= shortBlock && p.cfg.Client.Mode() == rueidis.ClientModeCluster && p.pool.partitions.Load() > 1 {
		return r.block + p.patience
	}
	return r.block + loop.CallTimeout
}

func (p *partitionWorker) readCommand(r reservation) rueidis.Completed {
	read := p.cfg.Blocking.B().Xreadgroup().Group(p.cfg.Group, p.cfg.Consumer).Count(int64(r.slots))
	if r.block == 0 {
		return read.Streams().Key(p.keys.Stream).Id(">").Build()
	}
	return read.Block(r.block.Milliseconds()).Streams().Key(p.keys.Stream).Id(">").Build()
}

// wasRead gives the token back, and notes the outcome of the read.
func (p *partitionWorker) wasRead(r reservation, found int, err error) {
	if r.hasToken {
		p.pool.waitTokens <- struct{}{}
	}
	p.setIdle(found == 0)
	if found > 0 && p.queue.share != nil {
		p.pool.slots.updateShare(p.queue.share, 0, found)
	}
	if err != nil {
		p.patience = min(2*p.patience, loop.CallTimeout)
	}
}

// setIdle notes whether the partition's last read found no entries or failed. A partition whose read failed counts as
// idle, because it must not hold up other queues.
func (p *partitionWorker) setIdle(idle bool) {
	if idle == p.idle {
		return
	}
	p.idle = idle
	busyChange := 1
	if idle {
		busyChange = -1
	}
	p.pool.busy.Add(int64(busyChange))
	if p.queue.share != nil {
		p.pool.slots.updateShare(p.queue.share, busyChange, 0)
	}
}

// nextStep returns the greatest number of entries of the next step. It is half of n if the last step, of n entries,
// exceeded its time limit, and else twice the present number, step.
func nextStep(step, n, limit int, err error) int {
	if errors.Is(err, context.DeadlineExceeded) {
		return max(1, n/2)
	}
	return min(2*step, limit)
}

// startAll starts handlers for deliveries, and acknowledges retries of other groups. It returns the number of slots in
// use.
func (p *partitionWorker) startAll(all []*delivery) int {
	own := all[:0]
	for _, d := range all {
		if d.foreign() {
			p.settle(d, nil)
			continue
		}
		own = append(own, d)
	}
	p.delivered.Add(uint64(len(own)))
	p.report(observe.Delivered, len(own))
	p.held.add(own)
	if p.queue.rate != nil {
		p.queue.rate.waiting.Add(int64(len(own)))
	}
	p.runners.start(own)
	return len(own)
}
