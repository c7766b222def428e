package stream

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

const (
	settleBatch = 200
	failBatch   = 100 // a failure costs the server ten times as much as an acknowledgement
	settleBytes = 512 << 10

	// settleEvery is the longest wait of a few acknowledgements for more, after a call was just sent, so that at 1,000
	// messages a second each call takes several. A single acknowledgement after a pause does not wait, and none waits
	// while a slot is wanted.
	settleEvery = 5 * time.Millisecond

	releaseBatch = 20 // of entries whose size nobody knows: the script holds all of them at once
)

// settler takes entries out of the pending list. While a call is in flight, further settlements queue up; the next call
// takes them together. A failed call is repeated until it succeeds or the worker is stopped for good: every script is
// harmless when run twice.
type settler struct {
	w    *partitionWorker
	wake chan struct{}
	last time.Time // beginning of the last call; used by run only

	passes pulse

	failing atomic.Bool  // the partition does not read: after a failed call, until without is zero
	without atomic.Int64 // unsettled deliveries whose slots were freed

	mu    sync.Mutex
	acks  []*delivery
	fails []failedDelivery
	ended bool // nothing is settled any more
}

type failedDelivery struct {
	d *delivery
	f lua.Failure
}

func (s *settler) ack(d *delivery) {
	s.mu.Lock()
	s.acks = append(s.acks, d)
	s.mu.Unlock()
	s.added()
}

func (s *settler) fail(d *delivery, f lua.Failure) {
	s.mu.Lock()
	s.fails = append(s.fails, failedDelivery{d, f})
	s.mu.Unlock()
	s.added()
}

// added starts the settlement of an added delivery. After a hard stop the delivery is given up, because nothing is
// settled any more.
func (s *settler) added() {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		s.giveUp()
		return
	}
	s.poke()
}

// giveUp reports Unknown for all waiting deliveries: they stay pending, or leave releases them.
func (s *settler) giveUp() {
	s.mu.Lock()
	left := s.acks
	for _, f := range s.fails {
		left = append(left, f.d)
	}
	s.acks, s.fails, s.ended = nil, nil, true
	s.mu.Unlock()
	if len(left) == 0 {
		return
	}
	tally := s.w.newTally()
	for _, d := range left {
		s.w.settled(d, Unknown, true, tally)
	}
	s.w.tellSettled(tally)
	s.w.drop(left...)
}

func (s *settler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *settler) run(ctx context.Context) {
	defer s.giveUp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.gather(ctx)
		for s.pass(ctx) {
			s.gather(ctx)
		}
	}
}

// gather waits until settleEvery has passed since the last call, or until there is a reason to settle at once.
func (s *settler) gather(ctx context.Context) {
	for !s.pressing() {
		wait := settleEvery - time.Since(s.last)
		if wait <= 0 || !loop.SleepUntil(ctx, wait, s.wake) {
			return
		}
	}
}

// pressing reports whether waiting for more would withhold slots from messages, or gain nothing.
func (s *settler) pressing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	many := max(1, s.w.cfg.Concurrency/(4*max(1, int(s.w.worker.parts.Load()))))
	return len(s.fails) > 0 || len(s.acks) == 0 || len(s.acks) >= many || s.w.slots.wanted()
}

// pass settles one batch of each kind. It returns false if nothing was waiting.
func (s *settler) pass(ctx context.Context) bool {
	s.mu.Lock()
	waiting := len(s.acks) + len(s.fails)
	s.mu.Unlock()
	if waiting == 0 {
		return false
	}
	s.last = time.Now()
	s.passes.begin()
	s.settleAcks(ctx, s.nextAcks())
	s.passes.step()
	s.settleFails(ctx, s.nextFails())
	s.passes.end()
	s.resume()
	return ctx.Err() == nil
}

func (s *settler) nextAcks() []*delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return cutBatch(&s.acks, settleBatch, func(d *delivery) int {
		if s.w.heldAt(d, now).ID == "" {
			return 0
		}
		return len(d.msg.Payload) // the script reads the entry to compare the ID
	})
}

func (s *settler) nextFails() []failedDelivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cutBatch(&s.fails, failBatch, func(f failedDelivery) int { return len(f.d.msg.Payload) })
}

// cutBatch cuts at most n items off the front of a list, and at most settleBytes, but at least one.
func cutBatch[T any](list *[]T, n int, size func(T) int) []T {
	bytes, i := 0, 0
	for i < len(*list) && i < n && (i == 0 || bytes+size((*list)[i]) <= settleBytes) {
		bytes += size((*list)[i])
		i++
	}
	out := (*list)[:i:i]
	*list = (*list)[i:]
	if len(*list) == 0 {
		*list = nil
	}
	return out
}

func (s *settler) settleAcks(ctx context.Context, batch []*delivery) {
	w := s.w
	if len(batch) == 0 {
		return
	}
	var won []bool
	certain, err := w.insist(ctx, batch, func(ctx context.Context) (err error) {
		held, now := make([]lua.Held, len(batch)), time.Now()
		for i, d := range batch {
			held[i] = w.heldAt(d, now)
		}
		won, err = lua.Ack(ctx, w.cfg.Client, w.keys, w.cfg.Group, held)
		return err
	})
	tally := w.newTally()
	for i, d := range batch {
		settlement := Acknowledged
		switch {
		case err != nil: // the worker was stopped for good: the reclaimer takes the entry
			settlement = Unknown
		case d.foreign():
			settlement = Skipped
			w.skipped.Add(1)
		case won[i]:
			w.acknowledged.Add(1)
		default:
			settlement = Lost
			w.lost.Add(1)
			w.note(slog.LevelInfo, "acknowledged too late: the message may be delivered again", d)
		}
		w.settled(d, settlement, certain, tally)
	}
	w.told(observe.Acking, len(batch))
	w.tellSettled(tally)
	w.drop(batch...)
}

func (s *settler) settleFails(ctx context.Context, batch []failedDelivery) {
	w := s.w
	if len(batch) == 0 {
		return
	}
	var outcomes []lua.Outcome
	var attempts lua.Attempts
	deliveries := make([]*delivery, len(batch))
	for i, one := range batch {
		deliveries[i] = one.d
	}
	certain, err := w.insist(ctx, deliveries, func(ctx context.Context) (err error) {
		failures, now := make([]lua.Failure, len(batch)), time.Now()
		for i, one := range batch {
			failures[i] = one.f
			failures[i].Held = w.heldAt(one.d, now)
		}
		attempts = w.policy.Load().Attempts()
		outcomes, err = lua.Retry(ctx, w.cfg.Client, w.keys, w.cfg.Group, attempts, failures)
		return err
	})
	tally := w.newTally()
	for i, one := range batch {
		settlement := Unknown
		if err == nil {
			if outcomes[i] == lua.Dead && tooOld(one, attempts) {
				one.f.Reason = lua.ReasonRetryFor
			}
			w.count(one.d, one.f, outcomes[i])
			settlement = SettlementOf(outcomes[i])
			if outcomes[i] == lua.Retried && w.cfg.Retried != nil {
				w.cfg.Retried(one.d.settledMessage(), delayOf(one, attempts), one.f.Error)
			}
		}
		if tally != nil {
			tally.failure = &one.f
		}
		w.settled(one.d, settlement, certain, tally)
	}
	w.told(observe.Failing, len(batch))
	w.tellSettled(tally)
	w.drop(deliveries...)
}

// delayOf returns the delay between a message's failure and its next delivery.
func delayOf(one failedDelivery, attempts lua.Attempts) time.Duration {
	if one.f.Delay >= 0 || len(attempts.Delays) == 0 {
		return max(0, one.f.Delay)
	}
	if own := lua.Delays(one.d.msg.Extra[lua.FieldRetryDelays]).List(); own != nil {
		return own[min(max(1, one.d.msg.Attempt), len(own))-1]
	}
	return attempts.Delays[min(max(1, one.d.msg.Attempt), len(attempts.Delays))-1]
}

// tooOld reports whether a failed message that became a dead letter had attempts left.
func tooOld(one failedDelivery, attempts lua.Attempts) bool {
	return one.f.Action == lua.ActionRetry && one.d.msg.Attempt < cmp.Or(one.d.msg.MaxAttempts, attempts.Max)
}

func (p *partitionWorker) count(d *delivery, f lua.Failure, outcome lua.Outcome) {
	failed := slog.String("error", f.Error)
	switch outcome {
	case lua.Retried:
		p.retried.Add(1)
		p.note(slog.LevelDebug, "failed: will be delivered again", d, failed)
	case lua.Dead:
		p.dead.Add(1)
		p.note(slog.LevelWarn, "dead-lettered", d, failed)
	case lua.Released:
		p.released.Add(1)
	case lua.Snoozed:
		p.snoozed.Add(1)
	case lua.Skipped:
		p.skipped.Add(1)
	case lua.CancelledOut:
		p.cancelled.Add(1)
	case lua.Stuck:
		p.note(slog.LevelError, "the stream of dead letters refused an entry: it stays pending", d, failed)
	default:
		p.lost.Add(1)
		p.note(slog.LevelInfo, "failed too late: the message is being delivered again already", d, failed)
	}
}

// note logs a line about a delivery. Of many lines with the same text it writes only some, and counts the others.
func (p *partitionWorker) note(level slog.Level, text string, d *delivery, more ...slog.Attr) {
	if !p.log.Enabled(context.Background(), level) {
		return
	}
	p.worker.floods.Log(p.log, level, text, append([]slog.Attr{slog.String("id", d.msg.ID), slog.String("entry", d.msg.EntryID),
		slog.Int("attempt", d.msg.Attempt)}, more...)...)
}

// drop ends deliveries: it cancels their contexts, removes them from the held ones and frees their slots.
func (p *partitionWorker) drop(ds ...*delivery) {
	slots, without := 0, int64(0)
	for _, d := range ds {
		d.cancel(nil)
		if d.hasSlot() {
			slots++
		}
		if d.slotReturned {
			without++
		}
	}
	p.settle.without.Add(-without)
	p.held.remove(ds)
	p.slots.put(slots)
}

// settling is the part of the worker's reported state that settlements have: reads may work while settlements fail.
const settling = "settling"

// hasSlot reports whether the delivery keeps a slot until it is settled.
func (d *delivery) hasSlot() bool {
	return !d.foreign() && !d.handling.keepsSlot && !d.slotReturned
}

// returnSlots frees the slots of a batch that could not be settled, and of all deliveries that wait behind it: other
// partitions can use them. The handlers of these deliveries have ended. The partition reads nothing until all of them
// are settled. A read may be under way, so the partition never holds more than twice as many messages as there are
// slots. The only partition of a worker keeps its slots.
func (s *settler) returnSlots(batch []*delivery) {
	if s.w.worker.parts.Load() == 1 {
		return
	}
	s.failing.Store(true)
	s.mu.Lock()
	waiting := slices.Concat(batch, s.acks)
	for _, f := range s.fails {
		waiting = append(waiting, f.d)
	}
	s.mu.Unlock()
	slots := 0
	for _, d := range waiting {
		if d.hasSlot() {
			d.slotReturned = true
			slots++
		}
	}
	s.without.Add(int64(slots))
	s.w.slots.put(slots)
}

// resume lets the partition read again when every delivery whose slot was freed is settled.
func (s *settler) resume() {
	if s.without.Load() == 0 && s.failing.Swap(false) {
		loop.Poke(s.w.resumed)
	}
}

// insist repeats a call that settles a batch until it succeeds, with backoff. It fails only if ctx ends. certain: the
// server executed none of the failed tries.
func (p *partitionWorker) insist(
	ctx context.Context, batch []*delivery, call func(context.Context) error,
) (certain bool, err error) {
	wait := loop.NewBackoff(2 * time.Second)
	for certain = true; ; {
		try, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		err := call(try)
		cancel()
		if err == nil {
			p.state.ReportPart(settling, nil)
			return certain, nil
		}
		certain = certain && !lua.Ambiguous(err)
		if ctx.Err() != nil {
			return certain, ctx.Err()
		}
		p.broken.Add(1)
		p.settle.passes.step()
		p.state.ReportPart(settling, err)
		p.settle.returnSlots(batch)
		if !loop.Sleep(ctx, wait.NextBackOff()) {
			return certain, ctx.Err()
		}
	}
}
