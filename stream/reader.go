package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// readLoop reads as many new entries as there are free slots, until ctx ends. After a broken connection it first extends what it
// holds and takes up what was delivered but never seen.
func (w *Worker) readLoop(ctx, hard context.Context) {
	wait := newBackoff()
	recovered := false
	for ctx.Err() == nil {
		err := error(nil)
		if !recovered {
			err = w.recover(ctx, hard)
			recovered = err == nil
		}
		if err == nil {
			err = w.readOnce(ctx, hard)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, lua.ErrNoGroup):
			err = w.heal(ctx)
			if err == nil {
				continue
			}
		case err == nil:
			wait.Reset()
			w.state.working()
			continue
		}
		recovered = false
		w.broken.Add(1)
		w.state.failing(err)
		sleep(ctx, wait.NextBackOff())
	}
}

// readOnce waits for a free slot, then for entries; it hands each to a handler.
func (w *Worker) readOnce(ctx, hard context.Context) error {
	free := w.slots.take(ctx, w.cfg.Concurrency)
	if free == 0 {
		return nil
	}
	entries, err := w.next(ctx, free)
	free -= w.startAll(w.deliveries(hard, entries))
	w.slots.put(free)
	return err
}

// next reads at most count new entries, waiting Block for the first. One stream a call, so that COUNT is exact.
func (w *Worker) next(ctx context.Context, count int) ([]rueidis.XRangeSlice, error) {
	// The deadline notices a server that hangs; the timeout of the command itself is the server's.
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Block+callTimeout)
	defer cancel()
	c := w.cfg.Blocking
	reply, err := c.Do(ctx, c.B().Xreadgroup().Group(w.cfg.Group, w.cfg.Consumer).Count(int64(count)).
		Block(w.cfg.Block.Milliseconds()).Streams().Key(w.keys.Stream).Id(">").Build()).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("stream: read %s/%s: %w", w.cfg.Queue, w.cfg.Group, lua.Classify("XREADGROUP", err))
	}
	return reply[w.keys.Stream], nil
}

// deliveries wraps entries that were read.
func (w *Worker) deliveries(hard context.Context, found []rueidis.XRangeSlice) []*delivery {
	now, epoch := time.Now(), w.broken.Load()
	parent := context.WithoutCancel(hard) // what is held is cancelled one by one
	all := make([]*delivery, len(found))
	for i := range found {
		d := &delivery{
			epoch: epoch, read: now, extended: now,
			msg: Message{Entry: lua.ParseEntry(found[i].ID, found[i].FieldValues), Queue: w.cfg.Queue, Group: w.cfg.Group, Consumer: w.cfg.Consumer},
		}
		d.ctx, d.cancel = context.WithCancelCause(parent)
		all[i] = d
	}
	return all
}

// startAll hands deliveries to handlers, and those for other groups straight on. It returns how many slots that takes.
func (w *Worker) startAll(all []*delivery) int {
	own := all[:0]
	for _, d := range all {
		if d.foreign() {
			w.settle.ack(d)
			continue
		}
		own = append(own, d)
	}
	w.delivered.Add(uint64(len(own)))
	w.held.add(own)
	w.runners.start(own)
	return len(own)
}

// recover is the first act after a start and after every broken connection: extend what is held, before the reclaimer may take it,
// then take up what the server delivered to this consumer and a cut connection kept from it. Reading the history would count a
// delivery; XPENDING and XRANGE do not.
func (w *Worker) recover(ctx, hard context.Context) error {
	if !w.joined {
		if err := w.refreshPolicy(ctx); err != nil { // before anything can fail by it
			return err
		}
		if _, err := EnsureGroup(ctx, w.cfg.Client, w.cfg.Prefix, w.cfg.Queue, w.cfg.Group); err != nil {
			return err
		}
		w.joined = true
	}
	if err := w.extendHeld(ctx, w.policy.Load().VisibilityTimeout); err != nil {
		return err
	}
	w.registerAgain()
	for {
		free := w.slots.take(ctx, w.cfg.Concurrency)
		if free == 0 {
			return nil
		}
		unseen, err := w.unseen(ctx, min(free, extendBatch))
		if err == nil && len(unseen) > 0 {
			free -= w.takeUp(ctx, hard, unseen, &err)
		}
		w.slots.put(free)
		if err != nil || len(unseen) == 0 {
			return err
		}
	}
}

// takeUp starts handlers for entries that are this consumer's already, and returns how many slots they use.
func (w *Worker) takeUp(ctx, hard context.Context, entries []string, failed *error) (used int) {
	held := make([]lua.Held, len(entries))
	for i, entry := range entries {
		held[i] = lua.Held{Entry: entry}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	extended, err := lua.Extend(ctx, w.cfg.Client, w.keys, w.cfg.Group, w.cfg.Consumer, held)
	if *failed = err; err != nil {
		return 0
	}
	var foreign []lua.Held
	for i, entry := range entries {
		if !extended[i] {
			continue // its body is gone: it is a dead letter now
		}
		c := w.cfg.Client
		found, err := c.Do(ctx, c.B().Xrange().Key(w.keys.Stream).Start(entry).End(entry).Build()).AsXRangeSlices()
		if *failed = lua.Classify("XRANGE", err); err != nil {
			return used
		}
		own := w.deliveries(hard, found)
		if len(own) > 0 && own[0].foreign() { // acknowledged here: it must not be found again
			own[0].cancel(nil)
			foreign, own = append(foreign, lua.Held{Entry: entry}), nil
		}
		used += w.startAll(own)
	}
	if len(foreign) > 0 {
		_, *failed = lua.Ack(ctx, w.cfg.Client, w.keys, w.cfg.Group, foreign)
	}
	return used
}

// unseen returns at most limit entries that are pending for this consumer, and that it does not hold.
func (w *Worker) unseen(ctx context.Context, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c := w.cfg.Client
	var unseen []string
	held := w.held.entries()
	for from := "-"; len(unseen) < limit; {
		page, err := c.Do(ctx, c.B().Xpending().Key(w.keys.Stream).Group(w.cfg.Group).Start(from).End("+").Count(500).
			Consumer(w.cfg.Consumer).Build()).ToArray()
		if err != nil {
			return nil, lua.Classify("XPENDING", err)
		}
		for _, row := range page {
			cells, err := row.ToArray()
			if err != nil || len(cells) == 0 {
				return nil, fmt.Errorf("stream: XPENDING: unexpected reply: %w", err)
			}
			entry, err := cells[0].ToString()
			if err != nil {
				return nil, fmt.Errorf("stream: XPENDING: unexpected reply: %w", err)
			}
			from = "(" + entry
			if !held[entry] && len(unseen) < limit {
				unseen = append(unseen, entry)
			}
		}
		if len(page) < 500 {
			break
		}
	}
	return unseen, nil
}
