package stream

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

const (
	settleBatch = 200       // acknowledgements per call
	failBatch   = 100       // failures per call; a failure costs the server ten times as much as an acknowledgement
	settleBytes = 512 << 10 // bytes of entries per call

	// settleEvery is the shortest time between two calls while only a few acknowledgements wait, so that at 1,000
	// messages a second each call takes several acknowledgements. A single acknowledgement after a pause does not wait,
	// and none waits while a slot is wanted.
	settleEvery = 10 * time.Millisecond
	// settleAwaited is the same time if somebody may wait for one of the acknowledgements: see isAwaited.
	settleAwaited = 5 * time.Millisecond

	// sameMaster is the time after a read within which this worker cannot yet be connected to another master.
	sameMaster = 100 * time.Millisecond

	// settling names the state of settlements in the worker's reports, apart from that of reads, because reads may work
	// while settlements fail.
	settling = "settling"
)

// unsettled holds the deliveries that wait for their settlement. While a call is in flight, further deliveries queue
// up. The next call takes them together.
type unsettled struct {
	due   chan struct{} // poked when settleLoop must not wait for more deliveries
	timer *time.Timer   // fires at deadline

	mu       sync.Mutex
	acks     []*delivery
	fails    []*delivery // deliveries with a failure
	called   time.Time   // beginning of the last call
	deadline time.Time   // latest beginning of the next call; zero = no delivery waits
	closed   bool        // whether further deliveries are refused
}

func newUnsettled() unsettled {
	timer := time.NewTimer(settleEvery)
	timer.Stop()
	return unsettled{due: make(chan struct{}, 1), timer: timer}
}

// add adds a delivery. The next call must begin at the latest afterLast after the beginning of the last call. After
// close, add adds nothing and returns false.
func (u *unsettled) add(d *delivery, afterLast time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return false
	case d.failure == nil:
		u.acks = append(u.acks, d)
	default:
		u.fails = append(u.fails, d)
	}
	deadline := u.called.Add(afterLast)
	if !u.deadline.IsZero() && !deadline.Before(u.deadline) {
		return true
	}
	u.deadline = deadline
	if wait := time.Until(deadline); wait > 0 {
		u.timer.Reset(wait)
	}
	return true
}

// state returns the number of waiting deliveries of each kind. late says that the deadline has passed.
func (u *unsettled) state() (acks, fails int, late bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.acks), len(u.fails), !u.deadline.IsZero() && time.Until(u.deadline) <= 0
}

// takeAcks takes a batch of deliveries to acknowledge. now is the beginning of the call that acknowledges them. size
// returns the number of bytes that the script reads for a delivery.
func (u *unsettled) takeAcks(now time.Time, size func(*delivery) int) []*delivery {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.called = now
	batch := cutBatch(&u.acks, settleBatch, size)
	u.clearDeadline()
	return batch
}

// takeFails takes a batch of deliveries with a failure.
func (u *unsettled) takeFails() []*delivery {
	u.mu.Lock()
	defer u.mu.Unlock()
	batch := cutBatch(&u.fails, failBatch, func(d *delivery) int { return len(d.msg.Payload) })
	u.clearDeadline()
	return batch
}

// clearDeadline clears the deadline if no delivery waits. The caller holds u.mu.
func (u *unsettled) clearDeadline() {
	if len(u.acks)+len(u.fails) == 0 {
		u.deadline = time.Time{}
		u.timer.Stop()
	}
}

// cutBatch cuts at most n deliveries off the front of a list, and at most settleBytes, but at least one.
func cutBatch(list *[]*delivery, n int, size func(*delivery) int) []*delivery {
	bytes, i := 0, 0
	for i < len(*list) && i < n && (i == 0 || bytes+size((*list)[i]) <= settleBytes) {
		bytes += size((*list)[i])
		i++
	}
	batch := (*list)[:i:i]
	*list = (*list)[i:]
	if len(*list) == 0 {
		*list = nil
	}
	return batch
}

// waiting returns all waiting deliveries.
func (u *unsettled) waiting() []*delivery {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Concat(u.acks, u.fails)
}

// close takes all waiting deliveries, and refuses further ones.
func (u *unsettled) close() []*delivery {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := slices.Concat(u.acks, u.fails)
	u.acks, u.fails, u.closed = nil, nil, true
	u.clearDeadline()
	return left
}

// settle gives a delivery to settleLoop. Without a failure settleLoop acknowledges the delivery; with a failure it
// settles the delivery by the action of the failure. After a hard stop nothing is settled any more, and settle gives
// the delivery up.
//
// If the next call must not wait any longer, settle wakes settleLoop. Otherwise the timer wakes settleLoop at the
// deadline. So at 1,000 messages a second settleLoop does not wake for each message.
func (p *partitionWorker) settle(d *delivery, failure *lua.Failure) {
	d.failure = failure
	afterLast := settleEvery
	if d.isAwaited() {
		afterLast = settleAwaited
	}
	switch {
	case !p.unsettled.add(d, afterLast):
		p.giveUp(d)
	case p.mustSettle():
		loop.Poke(p.unsettled.due)
	}
}

// isAwaited reports whether somebody may wait for the settlement. The next message of the same ordering key waits for
// it, and so does a caller that asked for a result.
func (d *delivery) isAwaited() bool { return d.msg.Extra[lua.FieldKey] != "" || d.asksForResult() }

// giveUp reports Unknown for deliveries. Their entries stay pending until leave releases them or they are reclaimed.
func (p *partitionWorker) giveUp(all ...*delivery) {
	for _, d := range all {
		d.settlement = Unknown
	}
	p.settled(all, true)
}

// settleLoop takes entries out of the pending list until ctx ends. A failed call is repeated until it succeeds: every
// script is harmless when run twice.
func (p *partitionWorker) settleLoop(ctx context.Context) {
	defer func() { p.giveUp(p.unsettled.close()...) }()
	for p.gather(ctx) && p.settlePass(ctx) {
	}
}

// gather waits until mustSettle is true. It returns false if ctx ends first.
func (p *partitionWorker) gather(ctx context.Context) bool {
	for !p.mustSettle() {
		select {
		case <-ctx.Done():
			return false
		case <-p.unsettled.due:
		case <-p.unsettled.timer.C:
		}
	}
	return true
}

// mustSettle reports whether the next call must begin now. It is false if no delivery waits. It is true if a delivery
// failed, if many acknowledgements wait, if the deadline has passed, or if a message waits for a slot.
func (p *partitionWorker) mustSettle() bool {
	acks, fails, late := p.unsettled.state()
	partitions := max(1, int(p.pool.partitions.Load()))
	many := min(settleBatch, max(1, p.cfg.Concurrency/(2*partitions)))
	return fails > 0 || acks >= many || late || acks > 0 && p.pool.slots.wanted()
}

// settlePass settles at most one batch of each kind. It returns false if ctx has ended.
func (p *partitionWorker) settlePass(ctx context.Context) bool {
	now := time.Now()
	p.settles.begin()
	p.settleAcks(ctx, p.unsettled.takeAcks(now, func(d *delivery) int { return p.comparedBytes(d, now) }))
	p.settles.step()
	p.settleFails(ctx, p.unsettled.takeFails())
	p.settles.end()
	p.resume()
	return ctx.Err() == nil
}

// comparedBytes returns the number of bytes of an entry that the script ack reads to compare the message ID. now is the
// beginning of the call.
func (p *partitionWorker) comparedBytes(d *delivery, now time.Time) int {
	if p.heldAt(d, now).ID == "" {
		return 0
	}
	return len(d.msg.Payload)
}

// heldAt names the entry for a settlement at the time now. If there may have been a failover since the read, it adds
// the message ID, because the new master may have given the entry ID to another message. The age of the read counts,
// too, because an idle worker does not notice that its connection broke.
func (p *partitionWorker) heldAt(d *delivery, now time.Time) lua.Held {
	if d.breaks == p.breaks.Load() && now.Sub(d.read) < sameMaster {
		return lua.Held{Entry: d.msg.EntryID, Key: d.msg.Extra[lua.FieldKey]}
	}
	return lua.Held{Entry: d.msg.EntryID, ID: d.msg.ID, Key: d.msg.Extra[lua.FieldKey]}
}

func (p *partitionWorker) settleAcks(ctx context.Context, batch []*delivery) {
	if len(batch) == 0 {
		return
	}
	var won []bool
	certain, err := p.insist(ctx, batch, func(ctx context.Context) (err error) {
		held, now := make([]lua.Held, len(batch)), time.Now()
		for i, d := range batch {
			held[i] = p.heldAt(d, now)
		}
		won, err = p.ack(ctx, batch, held)
		return err
	})
	for i, d := range batch {
		switch {
		case err != nil: // the worker was stopped for good: the reclaimer takes the entry
			d.settlement = Unknown
		case d.foreign():
			d.settlement = Skipped
		case won[i]:
			d.settlement = Acknowledged
		default:
			d.settlement = Lost
		}
		p.count(d)
	}
	if err == nil {
		p.forgetProgress(ctx, batch)
	}
	p.report(observe.Acking, len(batch))
	p.settled(batch, certain)
}

func (p *partitionWorker) settleFails(ctx context.Context, batch []*delivery) {
	if len(batch) == 0 {
		return
	}
	var outcomes []lua.Outcome
	var attempts lua.Attempts
	certain, err := p.insist(ctx, batch, func(ctx context.Context) (err error) {
		failures, now := make([]lua.Failure, len(batch)), time.Now()
		for i, d := range batch {
			failures[i] = *d.failure
			failures[i].Held = p.heldAt(d, now)
		}
		attempts = p.policy.Load().Attempts()
		outcomes, err = lua.Retry(ctx, p.cfg.Client, p.keys, p.cfg.Group, attempts, failures)
		return err
	})
	for i, d := range batch {
		if err != nil {
			d.settlement = Unknown
			continue
		}
		d.settlement = SettlementOf(outcomes[i])
		if d.settlement == Dead && d.hadAttemptsLeft(attempts) {
			d.failure.Reason = lua.ReasonRetryFor
		}
		p.count(d)
		if d.settlement == Retried && p.cfg.Retried != nil {
			p.cfg.Retried(d.settledMessage(), d.retryDelay(attempts), d.failure.Error)
		}
	}
	if err == nil {
		p.forgetProgress(ctx, batch)
	}
	p.report(observe.Failing, len(batch))
	p.settled(batch, certain)
}

// insist repeats a call that settles a batch until it succeeds, with backoff. It fails only if ctx ends. certain is
// true if the server executed none of the failed tries.
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
		p.breaks.Add(1)
		p.settles.step()
		p.state.ReportPart(settling, err)
		p.returnSlots(batch)
		if !loop.Sleep(ctx, wait.NextBackOff()) {
			return certain, ctx.Err()
		}
	}
}

// returnSlots frees the slots of a batch that could not be settled, and of all deliveries that wait behind it, so that
// other partitions can use the slots. The handlers of these deliveries have ended. The partition reads nothing until
// all of them are settled. A read may be under way, so the partition never holds more than twice as many messages as
// there are slots. The only partition of a worker keeps its slots.
func (p *partitionWorker) returnSlots(batch []*delivery) {
	if p.pool.partitions.Load() == 1 {
		return
	}
	p.settleFailing.Store(true)
	slots := 0
	for _, d := range slices.Concat(batch, p.unsettled.waiting()) {
		if d.hasSlot() {
			d.slotReturned = true
			slots++
		}
	}
	p.slotless.Add(int64(slots))
	p.pool.slots.put(slots)
}

// resume lets the partition read again when every delivery whose slot was freed is settled.
func (p *partitionWorker) resume() {
	if p.slotless.Load() == 0 && p.settleFailing.Swap(false) {
		loop.Poke(p.resumed)
	}
}
