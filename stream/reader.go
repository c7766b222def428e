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
func (w *lane) readLoop(ctx, hard context.Context) {
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
			w.cutOff = err != nil
			return
		case errors.Is(err, lua.ErrNoGroup):
			err = w.heal(ctx)
			if err == nil {
				continue
			}
		case err == nil:
			wait.Reset()
			w.state.working()
			if w.doubt { // what a read that failed was given by now was not there yet when it was looked for
				w.doubt, recovered = false, false
			}
			continue
		}
		recovered, w.doubt = false, true
		w.broken.Add(1)
		w.state.failing(err)
		sleep(ctx, wait.NextBackOff())
	}
}

// readOnce waits for a free slot, then for entries; it hands each to a handler.
func (w *lane) readOnce(ctx, hard context.Context) error {
	r := w.reserve(ctx)
	if r.slots == 0 {
		return nil
	}
	entries, err := w.next(ctx, r)
	w.wasRead(r, len(entries), err)
	used := w.startAll(w.deliveries(hard, entries))
	w.slots.put(r.slots - used)
	return err
}

// next reads as many new entries as there are slots for. One stream a call, so that COUNT is exact.
func (w *lane) next(ctx context.Context, r reservation) ([]rueidis.XRangeSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, w.deadline(r))
	defer cancel()
	reply, err := w.cfg.Blocking.Do(ctx, w.read(r)).AsXReadSlices()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("stream: read %s/%s: %w", w.cfg.Queue, w.cfg.Group, lua.Classify("XREADGROUP", err))
	}
	return reply[w.keys.Stream], nil
}

// deliveries wraps entries that were read.
func (w *lane) deliveries(hard context.Context, found []rueidis.XRangeSlice) []*delivery {
	now, epoch := time.Now(), w.broken.Load()
	parent := context.WithoutCancel(hard) // what is held is cancelled one by one
	all := make([]*delivery, len(found))
	for i := range found {
		d := &delivery{
			epoch: epoch, read: now, extended: now,
			msg: Message{Entry: lua.ParseEntry(found[i].ID, found[i].FieldValues), Queue: w.cfg.Queue, Group: w.cfg.Group, Consumer: w.cfg.Consumer, Partition: w.partition},
		}
		d.ctx, d.cancel = context.WithCancelCause(parent)
		all[i] = d
	}
	return all
}

// startAll hands deliveries to handlers, and those for other groups straight on. It returns how many slots that takes.
func (w *lane) startAll(all []*delivery) int {
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
func (w *lane) recover(ctx, hard context.Context) error {
	if !w.joined {
		if err := w.refreshPolicy(ctx); err != nil { // before anything can fail by it
			return err
		}
		if _, err := lua.EnsureGroup(ctx, w.cfg.Client, w.keys, w.cfg.Group); err != nil {
			return err
		}
		w.joined = true
	}
	if err := w.extendHeld(ctx, w.policy.Load().VisibilityTimeout); err != nil {
		return err
	}
	w.registerAgain()
	for {
		unseen, err := w.unseen(ctx, extendBatch) // before any slot is taken: the server may hang
		if err != nil || len(unseen) == 0 {
			return err
		}
		free := w.slots.take(ctx, len(unseen))
		if free == 0 {
			return nil
		}
		used := w.takeUp(ctx, hard, unseen[:free], &err)
		w.slots.put(free - used)
		if err != nil {
			return err
		}
	}
}

// takeUp starts handlers for entries that are this consumer's already, and returns how many slots they use.
func (w *lane) takeUp(ctx, hard context.Context, entries []string, failed *error) (used int) {
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
func (w *lane) unseen(ctx context.Context, limit int) ([]string, error) {
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
