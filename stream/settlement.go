package stream

import "github.com/duestream/duestream/lua"

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
	// Cancelled: the message was cancelled while this worker held it. Whatever the handler returned, the group is done with it.
	Cancelled Settlement = "cancelled"

	// Lost: another consumer took the entry out of the pending list first; the handler's result has no effect.
	Lost Settlement = "lost"
	// Unknown: the worker cannot tell. Either it was stopped for good before Redis answered. Or the reply was lost and
	// the call repeated: then this worker's first try settled the entry, or another consumer did.
	Unknown Settlement = "unknown"
	// Stuck: the stream of dead letters refused the entry. It stays pending, and is reclaimed after the visibility timeout.
	Stuck Settlement = "stuck"
)

// SettlementOf returns the settlement for a script's outcome.
func SettlementOf(o lua.Outcome) Settlement { return settlements[o] }

var settlements = map[lua.Outcome]Settlement{
	lua.Retried: Retried, lua.Dead: Dead, lua.Released: Released, lua.Snoozed: Snoozed,
	lua.Skipped: Skipped, lua.CancelledOut: Cancelled, lua.Lost: Lost, lua.Stuck: Stuck,
}

// settled reports a settlement to the configured callback and the tally. certain: no earlier try of the same call can
// have been executed. tally collects the counts of the batch; nil = no observer.
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
