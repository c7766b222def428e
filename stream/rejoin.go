package stream

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// rejoin runs at the start and after every broken connection. It extends held entries before the reclaimer may take
// them. Then it starts handlers for entries that the server gave to this consumer while the connection broke. It reads
// these entries with XPENDING and XRANGE, because reading the consumer's history with XREADGROUP would count another
// delivery.
//
// Entries that a consumer of this name was given before this worker started belong to another worker. That worker
// crashed, perhaps because of one of these entries, or it lives and breaks the rule of unique names. A living worker
// extends its entries; the entries of a crashed worker are reclaimed.
func (p *partitionWorker) rejoin(ctx, hard context.Context) error {
	if !p.joined {
		if err := p.refreshPolicy(ctx); err != nil { // the later steps need the policy
			return err
		}
		created, err := lua.EnsureGroup(ctx, p.cfg.Client, p.keys, p.cfg.Group)
		if err != nil {
			return err
		}
		p.created = p.created || created
		if p.created && p.partition == 0 {
			if err := p.queue.createElsewhere(ctx); err != nil {
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
	p.queue.registerAgain()
	loop.Poke(p.refresh)
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
		p.pool.slots.put(free - used)
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
			p.joinedAt = g.Last
		}
	}
	return nil
}

const (
	// fetchBatch is the greatest number of entries that one step fetches.
	fetchBatch = 20
	// fetchTries is the number of times that an entry may be fetched alone and come too late. After that, the entry is
	// left to the reclaimer.
	fetchTries = 3
)

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
			delete(p.late, d.msg.EntryID)
			if d.foreign() { // it is acknowledged below, so that it is not found again
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
		_, ackErr := lua.Ack(ctx, p.cfg.Client, p.keys, p.cfg.Group, foreign)
		err = errors.Join(err, ackErr)
	}
	return used, err
}

// fetch reads the first n of the given entries, and extends all of them, because no loop extends them yet. Otherwise,
// on a slow server, the last entries would be reclaimed while the first ones are fetched, and would be handled twice.
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
		case lua.HeldCancelled: // the message was cancelled before a handler began
			cancelled = append(cancelled, lua.Failure{
				Held:   lua.Held{Entry: entry},
				Action: lua.ActionCancel,
				Delay:  -1,
			})
		case lua.StillHeld: // an entry that is not held was reclaimed, or the script dead-lettered it without a body
			reads = append(reads, c.B().Xrange().Key(p.keys.Stream).Start(entry).End(entry).Build())
		}
	}
	if len(cancelled) > 0 {
		_, err = lua.Retry(ctx, c, p.keys, p.cfg.Group, p.policy.Load().Attempts(), cancelled)
	}
	for _, reply := range c.DoMulti(ctx, reads...) {
		found, readErr := reply.AsXRangeSlices()
		err = errors.Join(err, lua.Classify("XRANGE", readErr))
		all = append(all, found...)
	}
	if n == 1 && len(reads) == 1 && errors.Is(err, context.DeadlineExceeded) {
		p.cameLate(entries[0])
	}
	return all, err
}

// cameLate notes that an entry was fetched alone and came too late.
func (p *partitionWorker) cameLate(entry string) {
	p.late[entry]++
	if p.late[entry] == fetchTries {
		p.log.Error("an entry cannot be fetched in time: it is left until the visibility timeout",
			slog.String("entry", entry))
	}
}

// unseen returns at most limit entries that are pending for this worker but that the worker does not know. It leaves
// out entries that cannot be fetched in time.
func (p *partitionWorker) unseen(ctx context.Context, limit int) ([]string, error) {
	const count = 500
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var unseen []string
	held := p.held.entries()
	for from := p.joinedAt.String(); len(unseen) < limit; { // the in-process server does not support "("
		page, err := view.ReadPending(ctx, p.cfg.Client, p.keys.Stream, p.cfg.Group,
			view.PendingRange{From: from, Count: count, Consumer: p.cfg.Consumer})
		if err != nil {
			return nil, err
		}
		for _, one := range page {
			entry := one.ID.String()
			from = "(" + entry
			if !held[entry] && one.ID != p.joinedAt && p.late[entry] < fetchTries && len(unseen) < limit {
				unseen = append(unseen, entry)
			}
		}
		if len(page) < count {
			break
		}
	}
	return unseen, nil
}
