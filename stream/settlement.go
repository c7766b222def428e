package stream

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/duestream/duestream/lua"
)

// Settlement is how a delivery ended at a worker.
type Settlement string

// Settlements. Of all consumers that ever held an entry for a group, at most one is told one of the first seven.
const (
	Acknowledged Settlement = "acknowledged"
	Retried      Settlement = "retried"  // scheduled for another attempt
	Dead         Settlement = "dead"     // dead-lettered
	Released     Settlement = "released" // scheduled again at once, with the same attempt
	Snoozed      Settlement = "snoozed"  // scheduled again after a delay, with the same attempt
	Skipped      Settlement = "skipped"  // it was meant for another group
	// Cancelled: the message was cancelled while this worker held it. Whatever the handler returned, the group is done
	// with it.
	Cancelled Settlement = "cancelled"

	// Lost: another consumer took the entry out of the pending list first; the handler's result has no effect.
	Lost Settlement = "lost"
	// Unknown: the worker cannot tell. Either it was stopped for good before Redis answered. Or the reply was lost and
	// the call was repeated: then either this worker's first try settled the entry, or another consumer did.
	Unknown Settlement = "unknown"
	// Stuck: the stream of dead letters refused the entry. It stays pending, and is reclaimed after the visibility
	// timeout.
	Stuck Settlement = "stuck"
)

// SettlementOf returns the settlement for a script's outcome.
func SettlementOf(o lua.Outcome) Settlement { return settlements[o] }

var settlements = map[lua.Outcome]Settlement{
	lua.Retried: Retried, lua.Dead: Dead, lua.Released: Released, lua.Snoozed: Snoozed,
	lua.Skipped: Skipped, lua.CancelledOut: Cancelled, lua.Lost: Lost, lua.Stuck: Stuck,
}

// count counts a delivery by its settlement, and logs failures.
func (p *partitionWorker) count(d *delivery) {
	switch d.settlement {
	case Acknowledged:
		p.acknowledged.Add(1)
	case Retried:
		p.retried.Add(1)
		p.logDelivery(slog.LevelDebug, "failed: will be delivered again", d, slog.String("error", d.failure.Error))
	case Dead:
		p.dead.Add(1)
		p.logDelivery(slog.LevelWarn, "dead-lettered", d, slog.String("error", d.failure.Error))
	case Released:
		p.released.Add(1)
	case Snoozed:
		p.snoozed.Add(1)
	case Skipped:
		p.skipped.Add(1)
	case Cancelled:
		p.cancelled.Add(1)
	case Stuck:
		p.logDelivery(slog.LevelError, "the stream of dead letters refused an entry: it stays pending", d,
			slog.String("error", d.failure.Error))
	case Unknown:
	default: // Lost
		p.lost.Add(1)
		if d.failure == nil {
			p.logDelivery(slog.LevelInfo, "acknowledged too late: the message may be delivered again", d)
			return
		}
		p.logDelivery(slog.LevelInfo, "failed too late: the message is being delivered again already", d,
			slog.String("error", d.failure.Error))
	}
}

// settled reports the settlements of deliveries to the observer and to the configured callback, and drops the
// deliveries. certain is true if no earlier try of the same call can have been executed.
func (p *partitionWorker) settled(all []*delivery, certain bool) {
	tally := p.newTally()
	for _, d := range all {
		if d.settlement == Lost && !certain {
			d.settlement = Unknown
		}
		tally.add(d)
		if p.cfg.Settled != nil {
			p.cfg.Settled(d.settledMessage(), d.settlement)
		}
	}
	tally.report()
	p.drop(all)
}

// drop ends deliveries: it cancels their contexts, removes them from the held ones and frees their slots.
func (p *partitionWorker) drop(all []*delivery) {
	slots, slotless := 0, int64(0)
	for _, d := range all {
		d.cancel(nil)
		if d.hasSlot() {
			slots++
		}
		if d.slotReturned {
			slotless++
		}
	}
	p.slotless.Add(-slotless)
	p.held.remove(all)
	p.pool.slots.put(slots)
}

// hasSlot reports whether the delivery keeps a slot until it is settled.
func (d *delivery) hasSlot() bool {
	return !d.foreign() && !d.handling.keepsSlot && !d.slotReturned
}

// retryDelay returns the delay between the failure of a message and its next delivery.
func (d *delivery) retryDelay(attempts lua.Attempts) time.Duration {
	if d.failure.Delay >= 0 || len(attempts.Delays) == 0 {
		return max(0, d.failure.Delay)
	}
	if own := lua.Delays(d.msg.Extra[lua.FieldRetryDelays]).List(); own != nil {
		return own[min(max(1, d.msg.Attempt), len(own))-1]
	}
	return attempts.Delays[min(max(1, d.msg.Attempt), len(attempts.Delays))-1]
}

// hadAttemptsLeft reports whether a failed message that became a dead letter had attempts left. If so, it became one
// because it was too old for a retry.
func (d *delivery) hadAttemptsLeft(attempts lua.Attempts) bool {
	return d.failure.Action == lua.ActionRetry && d.msg.Attempt < cmp.Or(d.msg.MaxAttempts, attempts.Max)
}

// logDelivery logs a line about a delivery. From many lines with the same text it writes only some, and counts the
// others.
func (p *partitionWorker) logDelivery(level slog.Level, text string, d *delivery, more ...slog.Attr) {
	if !p.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("id", d.msg.ID),
		slog.String("entry", d.msg.EntryID),
		slog.Int("attempt", d.msg.Attempt),
	}
	p.queue.floods.Log(p.log, level, text, append(attrs, more...)...)
}
