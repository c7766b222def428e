package campaign

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// delivery is one entry in one group, with all records about it.
type delivery struct {
	entry       string
	attempt     int
	forGroup    string // value of the field "for": the group that a retry is for, "" = all groups
	starts      []record
	ends        []record
	settlements []record
}

// chain is the history of one message in one group, by entry ID. Each entry leaves the pending list once: it is
// acknowledged, or replaced by the next entry or a dead letter.
type chain struct {
	group   string
	entries []*delivery
	letters []Letter
	apart   bool // crashes use up no attempt
}

// chainsOf sorts the records of workers by group and entry, and returns the chains by group. It ignores an entry that
// was settled without being started.
func chainsOf(records []record, letters []Letter) map[string]*chain {
	chains := map[string]*chain{}
	chainOf := func(group string) *chain {
		if chains[group] == nil {
			chains[group] = &chain{group: group}
		}
		return chains[group]
	}
	for _, r := range records {
		if r.entry == "" {
			continue
		}
		c := chainOf(r.by.group)
		i := slices.IndexFunc(c.entries, func(d *delivery) bool { return d.entry == r.entry })
		if i < 0 {
			i = len(c.entries)
			c.entries = append(c.entries, &delivery{entry: r.entry})
		}
		d := c.entries[i]
		switch r.verb {
		case verbStart:
			d.starts, d.attempt, d.forGroup = append(d.starts, r), r.attempt, r.forGroup
		case verbEnd:
			d.ends = append(d.ends, r)
		case verbSettle:
			d.settlements = append(d.settlements, r)
		}
	}
	for _, l := range letters {
		c := chainOf(l.Group)
		c.letters = append(c.letters, l)
	}
	for _, c := range chains {
		c.entries = slices.DeleteFunc(c.entries, func(d *delivery) bool { return len(d.starts) == 0 })
		slices.SortFunc(c.entries, func(a, b *delivery) int { return view.CompareEntries(a.entry, b.entry) })
	}
	return chains
}

// won returns how a worker certainly removed the entry from the pending list, or "" if no worker knows that it did.
func (d *delivery) won() string {
	for _, x := range slices.Backward(d.settlements) { // the last one, because a failover may undo a settlement
		if isWin(x) {
			return x.word
		}
	}
	return ""
}

func isWin(x record) bool {
	switch bridge.Settlement(x.word) {
	case bridge.Acknowledged, bridge.Retried, bridge.Dead, bridge.Released, bridge.Snoozed:
		return true
	}
	return false
}

func (d *delivery) settledAs(s bridge.Settlement) bool {
	return slices.ContainsFunc(d.settlements, func(x record) bool { return x.word == string(s) })
}

func (d *delivery) ended(how string) bool {
	return slices.ContainsFunc(d.ends, func(e record) bool { return e.word == how })
}

// lost reports whether the last worker of the entry was told that another one had removed it.
func (d *delivery) lost() bool {
	by := d.starts[len(d.starts)-1].by
	return slices.ContainsFunc(d.settlements, func(x record) bool {
		return x.by == by && x.word == string(bridge.Lost)
	})
}

// failed reports whether a handler failed on this entry in time. Then the next attempt is a retry, and not a
// duplicate.
func (d *delivery) failed() bool {
	return (d.ended(endFail) || d.ended(endHang)) && !d.settledAs(bridge.Lost) || d.ended(endAbandon)
}

func (d *delivery) snoozed() bool { return d.won() == string(bridge.Snoozed) }

// maySnooze reports whether a handler snoozed, and was not told that it was too late.
func (d *delivery) maySnooze() bool { return d.ended(endSnooze) && !d.settledAs(bridge.Lost) }

// outlastedLimit reports whether the time of a hung handler was over before until, in Unix µs. Then its attempt
// failed, even if the settlement came too late.
func (d *delivery) outlastedLimit(until int64) bool {
	return d.ended(endHang) && until-d.starts[len(d.starts)-1].at >= hangLimit.Microseconds()
}

// added returns when the entry was added to the stream, in Unix µs, by the server's clock.
func (d *delivery) added() int64 { return lua.EntryTime(d.entry).UnixMicro() }

// takenAgainAfter reports whether the message became ready for all groups a second time, at least one window after the
// first time.
func (c *chain) takenAgainAfter(window time.Duration) bool {
	first := int64(0)
	for _, d := range c.entries {
		switch {
		case d.attempt != 1 || d.forGroup != "":
		case first == 0:
			first = d.added()
		case d.added()-first >= window.Microseconds():
			return true
		}
	}
	return false
}

// owners finds entries that left the pending list more than once, by the ledgers alone:
//
//   - two workers were each told that their settlement of the same entry won;
//   - an entry was acknowledged or dead-lettered by a winner, and the message was still delivered again to this group;
//   - an entry was given to two processes: one of them must have claimed it;
//   - two entries have the same attempt, or a later one has a smaller attempt, although the first was not released: two
//     settlements of one entry have each scheduled a retry.
//
// undone reports whether a failover between two times (Unix µs) may have undone an event at the first time. After a
// failover that undid the addition of an entry, the message is added again, and for a while both entries have workers.
// On a slow machine their handlers start seconds later, and in any order, so these times begin when the first entry
// was added.
func (c *chain) owners(undone func(from, until int64) bool, complain func(format string, args ...any)) {
	for i, d := range c.entries {
		var wins []string
		var first, last int64
		for _, x := range d.settlements {
			if isWin(x) {
				wins = append(wins, x.by.name+" "+x.word)
				if len(wins) == 1 {
					first = x.at
				}
				last = x.at
			}
		}
		if len(wins) > 1 && !undone(first, last) {
			complain("entry %s left the pending list %d times: %s", d.entry, len(wins), strings.Join(wins, ", "))
		}
		for _, s := range d.starts[1:] {
			if s.by != d.starts[0].by && !undone(d.starts[0].at, s.at) {
				complain("entry %s was given to %s and to %s", d.entry, d.starts[0].by.name, s.by.name)
			}
		}
		if i+1 == len(c.entries) {
			continue
		}
		next := c.entries[i+1]
		if undone(d.added(), next.starts[0].at) {
			continue
		}
		switch won := bridge.Settlement(d.won()); {
		case won == bridge.Acknowledged || won == bridge.Dead:
			complain("entry %s was %s by who owned it, and entry %s follows", d.entry, won, next.entry)
		case next.attempt < d.attempt:
			complain("entry %s has attempt %d, and entry %s after it attempt %d", d.entry, d.attempt, next.entry, next.attempt)
		case c.apart && won == "": // a crash, which uses up no attempt
		case next.attempt == d.attempt && won != bridge.Released && won != bridge.Snoozed && !d.mayBeReleased():
			complain("entries %s and %s are both attempt %d, and the first was not released", d.entry, next.entry, d.attempt)
		}
	}
	if len(c.letters) > 1 {
		complain("%d dead letters", len(c.letters))
	}
	if len(c.entries) == 0 || len(c.letters) == 0 {
		return
	}
	last := c.entries[len(c.entries)-1]
	if last.won() == string(bridge.Acknowledged) && !undone(last.added(), c.letters[0].At*1000) {
		complain("entry %s was acknowledged by who owned it, and there is a dead letter", last.entry)
	}
}

// mayBeReleased reports whether the entry may have been released: the reply of a release was lost, its process was
// killed, or the stream of dead letters refused the entry and the worker released it at its stop.
func (d *delivery) mayBeReleased() bool {
	return len(d.settlements) < len(d.starts) || d.settledAs(bridge.Unknown) || d.settledAs(bridge.Stuck)
}

// terminal checks the end of a chain. It returns the column of a violation (lost, or a wrong terminal state) and its
// description, or "" if the end is right. explained reports whether a fault explains that nobody knows of the
// acknowledgement of an entry.
func (c *chain) terminal(p plan, explained func(d *delivery) bool) (column, problem string) {
	if len(c.letters) > 0 {
		return c.letter(p)
	}
	if len(c.entries) == 0 {
		return columnLost, "never delivered"
	}
	last := c.entries[len(c.entries)-1]
	switch bridge.Settlement(last.won()) {
	case bridge.Acknowledged:
		if p.dies() {
			return columnWrong, "acknowledged, though every handler fails it"
		}
		return "", ""
	case bridge.Retried, bridge.Released, bridge.Snoozed:
		return columnLost, fmt.Sprintf("entry %s was %s, and nothing follows", last.entry, last.won())
	case bridge.Dead:
		return columnLost, fmt.Sprintf("entry %s was dead-lettered, and there is no dead letter", last.entry)
	}
	switch {
	case last.lost():
		return columnLost, fmt.Sprintf("entry %s was taken out by somebody else, and nothing follows", last.entry)
	case !last.ended(endOK):
		return columnLost, fmt.Sprintf("no handler succeeded with entry %s, it is gone, and nothing follows", last.entry)
	case p.dies():
		return columnWrong, "gone, though every handler fails it"
	case !explained(last):
		return columnWrong, fmt.Sprintf(
			"entry %s is gone, nobody knows of having acknowledged it, and no fault explains that", last.entry)
	}
	return "", ""
}

// letter checks a dead letter. Only messages that every handler fails may have one, with the right reason and
// attempts.
func (c *chain) letter(p plan) (column, problem string) {
	l := c.letters[0]
	describe := fmt.Sprintf("dead letter of reason %s after %d attempts", l.Reason, l.Attempt)
	switch l.Reason {
	case lua.ReasonRetryFor, lua.ReasonCrashes:
		if c.apart && l.Reason == lua.ReasonCrashes && l.Attempt == 1 {
			return "", "" // also if faults caused the crashes
		}
		if l.Reason != p.letterOf() {
			return columnWrong, describe
		}
		if l.Reason == lua.ReasonCrashes {
			return columnWrong, describe + ", and crashes use none up"
		}
	case lua.ReasonMaxAttempts, lua.ReasonVisibilityTimeout:
		if limit := p.maxAttempts(); limit == 0 || l.Attempt != limit {
			return columnWrong, fmt.Sprintf("%s, max_attempts %d", describe, limit)
		}
	case lua.ReasonHandlerTimeout:
		if p.kind != kindHang || l.Attempt != p.maxAttempts() {
			return columnWrong, describe
		}
	case lua.ReasonDeadLetter:
		if p.kind != kindBury {
			return columnWrong, describe
		}
	default:
		return columnWrong, describe
	}
	return "", ""
}
