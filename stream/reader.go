package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// readLoop reads as many new entries as there are free slots, until ctx ends. After a broken connection it first
// extends held entries, and takes up entries that were delivered but never seen.
func (p *partitionWorker) readLoop(ctx, hard context.Context) {
	wait := loop.NewBackoff(2 * time.Second)
	recovered, away := false, false
	defer p.setIdle(true)
	for ctx.Err() == nil {
		err := error(nil)
		if !recovered {
			err = p.recover(ctx, hard)
			recovered = err == nil
		}
		if err == nil {
			err = p.readOnce(ctx, hard)
		}
		switch {
		case ctx.Err() != nil:
			p.cutOff = err != nil
			return
		case errors.Is(err, lua.ErrNoGroup):
			err = p.heal(ctx)
			if err == nil {
				continue
			}
		case err == nil:
			wait.Reset()
			p.state.Report(nil)
			if away {
				away = false
				p.told(observe.WorkerReconnect, 1)
			}
			if p.doubt { // the server may have executed a failed read after the worker looked for its entries
				p.doubt, recovered = false, false
			}
			continue
		}
		p.setIdle(true)
		recovered, p.doubt, away = false, true, away || lua.Temporary(err)
		p.broken.Add(1)
		p.state.Report(err)
		loop.Sleep(ctx, wait.NextBackOff())
	}
}

// readOnce waits for free slots, then for entries, and hands each one to a handler.
func (p *partitionWorker) readOnce(ctx, hard context.Context) error {
	if p.policy.Load().HeldWorkers {
		p.rest(ctx)
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
		p.slots.put(r.slots - most)
		r.slots = most
	}
	if r.slots == 0 {
		return nil
	}
	if p.settle.failing.Load() { // its own unsettled deliveries may have freed these slots
		p.slots.put(r.slots)
		p.wasRead(r, 0, nil)
		loop.SleepUntil(ctx, heldLook, p.resumed)
		return nil
	}
	p.reads.begin()
	entries, err := p.next(ctx, r)
	p.reads.end()
	p.wasRead(r, len(entries), err)
	p.readStep = nextStep(p.readStep, r.slots, p.cfg.Concurrency, err)
	used := p.startAll(p.deliveries(hard, entries))
	p.slots.put(r.slots - used)
	if len(entries) > 0 {
		p.lookWhileBusy()
	}
	return err
}

// admitted returns how many messages may be read; 0 if ctx has ended.
func (p *partitionWorker) admitted(ctx context.Context) (int, error) {
	if p.cfg.Admit == nil {
		return p.cfg.Concurrency, nil
	}
	n, err := p.cfg.Admit(ctx, p.cfg.Concurrency)
	return min(max(n, 0), p.cfg.Concurrency), err
}

// heldLook is the time between two reads of the policy while it pauses the worker, or while the worker is busy.
const heldLook = time.Second

// rest waits while the policy pauses the worker, at most heldLook.
func (p *partitionWorker) rest(ctx context.Context) {
	p.setIdle(true)
	loop.Poke(p.refresh)
	loop.SleepUntil(ctx, heldLook, p.resumed)
}

// lookWhileBusy asks for a read of the policy each second while there are entries to read. So a pause of the workers
// takes effect soon, and an idle worker costs nothing extra.
func (p *partitionWorker) lookWhileBusy() {
	if now := time.Now(); now.Sub(p.lookedAt) >= heldLook {
		p.lookedAt = now
		loop.Poke(p.refresh)
	}
}

// next reads at most as many new entries as there are slots. One stream per call, so that COUNT is exact.
func (p *partitionWorker) next(ctx context.Context, r reservation) ([]rueidis.XRangeSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, p.deadline(r))
	defer cancel()
	reply, err := p.cfg.Blocking.Do(ctx, p.read(r)).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("read %s/%s: %w", p.cfg.Queue, p.cfg.Group, lua.Classify("XREADGROUP", err))
	}
	return reply[p.keys.Stream], nil
}

// deliveries wraps entries in deliveries.
func (p *partitionWorker) deliveries(hard context.Context, found []rueidis.XRangeSlice) []*delivery {
	now, epoch := time.Now(), p.broken.Load()
	parent := context.WithoutCancel(hard) // deliveries are cancelled one by one
	all := make([]*delivery, len(found))
	for i := range found {
		d := &delivery{
			epoch: epoch, read: now, extended: now,
			msg: Delivered(lua.ParseEntry(found[i].ID, found[i].FieldValues), p.cfg.Queue, p.partition, p.cfg.Group),
		}
		d.msg.Consumer = p.cfg.Consumer
		d.ctx, d.cancel = context.WithCancelCause(parent)
		all[i] = d
	}
	return all
}

// startAll starts handlers for deliveries, and acknowledges retries of other groups. It returns the number of slots in
// use.
func (p *partitionWorker) startAll(all []*delivery) int {
	own := all[:0]
	for _, d := range all {
		if d.foreign() {
			p.settle.ack(d)
			continue
		}
		own = append(own, d)
	}
	p.delivered.Add(uint64(len(own)))
	p.told(observe.Delivered, len(own))
	p.held.add(own)
	p.runners.start(own)
	return len(own)
}

// recover runs at the start and after every broken connection. It extends held entries, before the reclaimer may take
// them. Then it takes up entries that the server gave to this consumer while the connection broke. It uses XPENDING and
// XRANGE, because reading the consumer's history would count a delivery.
//
// Entries that a consumer of this name was given before the start are not this worker's. Their owner crashed, perhaps
// because of that very message, or lives and breaks the rule of unique names. Either the owner extends them, or they
// are reclaimed, as after a crash.
func (p *partitionWorker) recover(ctx, hard context.Context) error {
	if !p.joined {
		if err := p.refreshPolicy(ctx); err != nil { // first: later steps need the policy
			return err
		}
		created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
		if err != nil {
			return err
		}
		p.created = p.created || created
		if p.created && p.partition == 0 {
			if err := p.worker.createElsewhere(ctx); err != nil {
				return err
			}
		}
		if err := p.findStart(ctx); err != nil {
			return err
		}
		p.joined = true
	}
	if err := p.extendHeld(ctx, p.policy.Load().VisibilityTimeout); err != nil {
		return err
	}
	p.registerAgain()
	for {
		unseen, err := p.unseen(ctx, extendBatch) // before taking slots: the server may hang
		if err != nil || len(unseen) == 0 {
			return err
		}
		free := p.take(ctx, len(unseen), needOwned)
		if free == 0 {
			return nil
		}
		used, err := p.takeUp(ctx, hard, unseen[:free])
		p.slots.put(free - used)
		if err != nil {
			return err
		}
	}
}

// findStart notes the last entry delivered to the group before this worker reads. Entries given to this worker come
// after it.
func (p *partitionWorker) findStart(ctx context.Context) error {
	var groups []view.GroupInfo
	if err := view.Ask(ctx, p.cfg.Client, view.GroupsOf(p.cfg.Client, p.keys.Stream, &groups)); err != nil {
		return err
	}
	for _, g := range groups {
		if g.Name == p.cfg.Group {
			p.start = g.Last
		}
	}
	return nil
}

const (
	// fetchBatch is the most entries, given to this consumer before, that one step fetches.
	fetchBatch = 20
	// fetchTries is the number of times that an entry may be fetched alone and come too late. Then it is left to the
	// reclaimer.
	fetchTries = 3
)

// nextStep returns the most entries of the next step: half of n after a step of n entries that exceeded its time limit,
// else twice as many as before.
func nextStep(step, n, limit int, err error) int {
	if errors.Is(err, context.DeadlineExceeded) {
		return max(1, n/2)
	}
	return min(2*step, limit)
}

// takeUp starts handlers for entries that this consumer was given before, and returns the number of slots in use.
func (p *partitionWorker) takeUp(ctx, hard context.Context, entries []string) (used int, err error) {
	var foreign []lua.Held
	for len(entries) > 0 && err == nil {
		var found []rueidis.XRangeSlice
		step := min(p.fetchStep, len(entries))
		found, err = p.fetch(ctx, entries, step)
		p.fetchStep = nextStep(p.fetchStep, step, fetchBatch, err)
		entries = entries[step:]
		var own []*delivery
		for _, d := range p.deliveries(hard, found) {
			delete(p.failed, d.msg.EntryID)
			if d.foreign() { // acknowledged below, so that it is not found again
				d.cancel(nil)
				foreign = append(foreign, lua.Held{Entry: d.msg.EntryID})
				continue
			}
			own = append(own, d)
		}
		used += p.startAll(own)
	}
	if len(foreign) > 0 {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, failed := lua.Ack(ctx, p.cfg.Client, p.keys, p.cfg.Group, foreign)
		err = errors.Join(err, failed)
	}
	return used, err
}

// fetch reads the first n of some entries that no loop extends yet. It extends all of them. On a slow server the last
// entries would otherwise be reclaimed while the first ones are fetched, and then be handled twice.
func (p *partitionWorker) fetch(ctx context.Context, entries []string, n int) (all []rueidis.XRangeSlice, err error) {
	limit := loop.CallTimeout
	if n == 1 { // the entry may be large, but must not be reclaimed meanwhile
		limit = min(loop.PassTimeout, max(limit, p.policy.Load().VisibilityTimeout/2))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	held := make([]lua.Held, len(entries))
	for i, entry := range entries {
		held[i] = lua.Held{Entry: entry}
	}
	c := p.cfg.Client
	extended, err := lua.Extend(ctx, c, p.keys, p.cfg.Group, p.cfg.Consumer, held)
	if err != nil {
		return nil, err
	}
	var reads []rueidis.Completed
	var cancelled []lua.Failure
	for i, entry := range entries[:n] {
		switch extended[i] {
		case lua.HeldCancelled: // no handler has started on it
			cancelled = append(cancelled, lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionCancel, Delay: -1})
		case lua.StillHeld: // else it was deleted and dead-lettered by the script, or reclaimed
			reads = append(reads, c.B().Xrange().Key(p.keys.Stream).Start(entry).End(entry).Build())
		}
	}
	if len(cancelled) > 0 {
		_, err = lua.Retry(ctx, c, p.keys, p.cfg.Group, p.policy.Load().Attempts(), cancelled)
	}
	for _, reply := range c.DoMulti(ctx, reads...) {
		found, failed := reply.AsXRangeSlices()
		err = errors.Join(err, lua.Classify("XRANGE", failed))
		all = append(all, found...)
	}
	if n == 1 && len(reads) == 1 && errors.Is(err, context.DeadlineExceeded) {
		p.cameLate(entries[0])
	}
	return all, err
}

// cameLate notes that an entry was fetched alone and came too late.
func (p *partitionWorker) cameLate(entry string) {
	p.failed[entry]++
	if p.failed[entry] == fetchTries {
		p.log.Error("an entry cannot be fetched in time: it is left until the visibility timeout",
			slog.String("entry", entry))
	}
}

// unseen returns at most limit entries that are pending for this worker but not held by it. It leaves out those that
// cannot be fetched in time.
func (p *partitionWorker) unseen(ctx context.Context, limit int) ([]string, error) {
	const count = 500
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var unseen []string
	held := p.held.entries()
	for from := p.start.String(); len(unseen) < limit; { // the in-process server does not support "("
		page, err := view.ReadPending(ctx, p.cfg.Client, p.keys.Stream, p.cfg.Group,
			view.PendingRange{From: from, Count: count, Consumer: p.cfg.Consumer})
		if err != nil {
			return nil, err
		}
		for _, one := range page {
			entry := one.ID.String()
			from = "(" + entry
			if !held[entry] && one.ID != p.start && p.failed[entry] < fetchTries && len(unseen) < limit {
				unseen = append(unseen, entry)
			}
		}
		if len(page) < count {
			break
		}
	}
	return unseen, nil
}
