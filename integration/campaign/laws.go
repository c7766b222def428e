package campaign

import (
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// laws checks the rules for messages of special kinds, in addition to those for all messages:
//
//   - a snoozed entry is followed by one with the same attempt, not before the requested time. There are no more
//     snoozes than the handlers requested;
//   - a retry of a message with a list of delays comes no earlier than its delay after the failure;
//   - a message with a time limit for retries ends as a dead letter retry_for, and not before its next attempt would be
//     too late;
//   - a message that kills its workers ends as a dead letter crashes after the given number of crashes, without having
//     used up an attempt;
//   - of messages with one key, all entries of one come before all entries of the next (keyLaw);
//   - a replaced version is never delivered, and the last version is. features.go records each version as a message,
//     and a replacement as its cancel, so the columns for those find violations.
func (a *auditor) laws(p plan, promised promise, c *chain, complain func(column, format string, args ...any)) {
	snoozes, abandoned := 0, 0
	for i, d := range c.entries {
		if d.snoozed() {
			snoozes++
		}
		if d.ended(endAbandon) {
			abandoned++
		}
		if i+1 == len(c.entries) {
			continue
		}
		next, end := c.entries[i+1], d.endedAt()
		wait := time.Duration(0)
		switch won := bridge.Settlement(d.won()); {
		case won == bridge.Snoozed:
			wait = snoozeFor
			if next.attempt > d.attempt && len(next.starts) > 0 && p.kind == kindCrash {
				complain(columnWrong, "entry %s was snoozed as attempt %d, and came as attempt %d", d.entry, d.attempt, next.attempt)
			}
		case won == bridge.Retried && p.kind == kindGaps && next.attempt == d.attempt+1:
			wait = gaps[min(max(1, d.attempt), len(gaps))-1]
		case won == bridge.Retried && p.kind == kindAge && next.attempt == d.attempt+1:
			wait = ageGap
		}
		// The server counts in whole milliseconds, like entry IDs.
		if wait > 0 && end > 0 && next.added()/1000 < end/1000+wait.Milliseconds() &&
			!a.explainer.undone(d.starts[0].at, next.starts[0].at) {
			complain(columnEarly, "entry %s ended at %s, and entry %s follows after less than %s", d.entry, clock(end/1000),
				next.entry, wait)
		}
	}
	if p.kind == kindSnooze && snoozes > p.n && !a.explainer.undone(promised.first, c.last()) {
		complain(columnWrong, "snoozed %d times, asked for %d times", snoozes, p.n)
	}
	if p.kind == kindCrash && (abandoned > p.n || abandoned == p.n && len(c.letters) == 0) &&
		!a.explainer.undone(promised.first, c.last()) {
		complain(columnWrong, "abandoned %d times, and it dies of %d; dead letters: %d", abandoned, p.n, len(c.letters))
	}
	for _, l := range c.letters {
		if l.Reason == lua.ReasonRetryFor && promised.due > 0 && l.At < promised.due+(oldest-ageGap).Milliseconds() {
			complain(columnEarly, "dead letter of reason %s at %s, due %s", l.Reason, clock(l.At), clock(promised.due))
		}
	}
}

// letterOf returns the dead letter reason of a message of such a kind, or "" if its kind does not need to die.
func (p plan) letterOf() string {
	if p.kind == kindAge {
		return lua.ReasonRetryFor
	}
	return ""
}

func (d *delivery) snoozed() bool { return d.won() == string(bridge.Snoozed) }

// maySnooze reports whether a handler snoozed, and was not told that it was too late.
func (d *delivery) maySnooze() bool { return d.ended(endSnooze) && !d.exited(bridge.Lost) }

// endedAt returns when the handler of the winning worker ended, in Unix µs; 0 = unknown.
func (d *delivery) endedAt() int64 {
	i := slices.IndexFunc(d.exits, isWin)
	if i < 0 {
		return 0
	}
	for _, e := range d.ends {
		if e.by == d.exits[i].by {
			return e.at
		}
	}
	return 0
}

// last returns the time of the last record of a chain.
func (c *chain) last() (at int64) {
	for _, d := range c.entries {
		for _, r := range slices.Concat(d.starts, d.ends, d.exits) {
			at = max(at, r.at)
		}
	}
	return at
}

// span is the range of entries of a message with a key, in all groups.
type span struct{ id, first, last string }

// keyed records the span of a message with a key. It ignores the sacrificial queue, where keys are deleted with
// everything.
func (a *auditor) keyed(p plan, id string, chains map[string]*chain) {
	if p.kind != kindKeyed || p.queue != queueMain {
		return
	}
	one := span{id: id}
	for _, c := range chains {
		for _, d := range c.entries {
			if one.first == "" || compareEntries(d.entry, one.first) < 0 {
				one.first = d.entry
			}
			if one.last == "" || compareEntries(d.entry, one.last) > 0 {
				one.last = d.entry
			}
		}
	}
	if one.first != "" {
		a.spans[keyOf(id)] = append(a.spans[keyOf(id)], one)
	}
}

// keyLaw finds messages of one key that were in flight together: an entry of one, such as a retry, was added after
// the first entry of the next. A failover excuses that, and so does a rollback of the queue, which deletes the record
// of who holds a key.
func (a *auditor) keyLaw() {
	for key, spans := range a.spans {
		slices.SortFunc(spans, func(x, y span) int { return compareEntries(x.first, y.first) })
		for i := 1; i < len(spans); i++ {
			before, next := spans[i-1], spans[i]
			if compareEntries(before.last, next.first) > 0 &&
				!a.explainer.undone(lua.EntryTime(next.first).UnixMicro(), lua.EntryTime(before.last).UnixMicro()) &&
				!a.forgotten(before) {
				a.find(Finding{Column: columnOwners, ID: next.id, Problem: fmt.Sprintf(
					"entry %s of %s was added behind entry %s: both have %s", before.last, before.id, next.first, key)}, nil)
			}
		}
	}
}
