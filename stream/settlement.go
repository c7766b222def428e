package stream

import "github.com/duestream/duestream/lua"

// Settlement says how a delivery left a worker's hands.
type Settlement string

// Settlements. Of all who ever held an entry for a group, at most one is told one of the first seven.
const (
	Acknowledged Settlement = "acknowledged"
	Retried      Settlement = "retried"  // scheduled for another attempt
	Dead         Settlement = "dead"     // dead-lettered
	Released     Settlement = "released" // scheduled again at once, with the same attempt
	Snoozed      Settlement = "snoozed"  // scheduled again after a delay, with the same attempt
	Skipped      Settlement = "skipped"  // it was meant for another group
	// Cancelled: the message was cancelled while this worker held it. Whatever the handler returned, the group is done with it.
	Cancelled Settlement = "cancelled"

	// Lost: someone else took the entry out of the pending list before; what the handler returned has no effect.
	Lost Settlement = "lost"
	// Unknown: nobody can tell here. The worker was stopped for good before Redis had answered, or the reply was lost and the
	// call repeated: then the entry was taken out by this worker's first try, or by someone else.
	Unknown Settlement = "unknown"
	// Stuck: the stream of dead letters refused the entry. It stays pending, and is reclaimed after the visibility timeout.
	Stuck Settlement = "stuck"
)

// SettlementOf returns how a delivery ended that was taken out of a pending list.
func SettlementOf(o lua.Outcome) Settlement { return settlements[o] }

var settlements = map[lua.Outcome]Settlement{
	lua.Retried: Retried, lua.Dead: Dead, lua.Released: Released, lua.Snoozed: Snoozed,
	lua.Skipped: Skipped, lua.CancelledOut: Cancelled, lua.Lost: Lost, lua.Stuck: Stuck,
}

// settled tells the configured observer how a delivery ended. Certain says that no earlier try of the same call can have been
// executed. tally is what the observer will be told of the whole batch; nil when nobody listens.
func (p *partitionWorker) settled(d *delivery, s Settlement, certain bool, tally *settledTally) {
	if s == Lost && !certain {
		s = Unknown
	}
	if tally != nil {
		tally.add(d, s)
	}
	if p.cfg.Settled != nil {
		p.cfg.Settled(d.settledMessage(), s)
	}
}
