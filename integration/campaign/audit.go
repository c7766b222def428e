package campaign

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Result columns that must be zero.
const (
	columnLost        = "lost"
	columnEarly       = "early"
	columnStuck       = "stuck"
	columnOwners      = "two owners"
	columnWrong       = "wrong terminal state"
	columnUnexplained = "duplicates unexplained"
	columnBurnt       = "attempts burnt unexplained"
	columnCancelled   = "delivered after cancel"
	columnForeign     = "wrong group"
	columnTwice       = "taken twice"
	columnLeft        = "keys left"
)

var columns = []string{
	columnLost, columnEarly, columnStuck, columnOwners, columnWrong, columnUnexplained, columnBurnt, columnCancelled,
	columnForeign,
	columnTwice, columnLeft,
}

// Letter is a dead letter found at the end.
type Letter struct {
	Queue, ID, Group, Reason, Entry string
	Attempt                         int
	At                              int64 // Unix ms
}

// State is the content of Redis at rest, after the campaign.
type State struct {
	Letters []Letter
	Stuck   []string // things that did not come to rest while the holder was still holding
	Left    []string // keys, members and entries that should be gone
}

// Finding is one violation.
type Finding struct {
	Column, ID, Group, Problem string
	History                    []string // all records of the message, for the first findings only
}

// Tally holds the counts of an audit.
type Tally struct {
	Tried, Accepted, Unknown, Refused int // messages
	Cancelled, Moved                  int
	Halted, HaltedHeld                int            // cancelled in any state: held by nobody, and held
	Hung                              int            // dead letters of handlers that exceeded their limit
	Deliveries, First, Retries, Dead  map[string]int // by group
	Snoozed                           map[string]int // by group: deliveries after a snooze
	ByKind                            map[byte]int   // accepted messages by kind
	Crashed                           int            // dead letters of kindCrash
	Occurrences                       int            // accepted occurrences of recurrences
	Overwritten                       int            // versions that were replaced by a newer one
	Again                             map[string]int // explained duplicates, by fault
	Burnt                             map[string]int // explained attempts that no handler failed, by fault
	LostByOperator                    int            // messages × groups
	PublishedHTTP, DeliveredHTTP      int            // through gateways: accepted messages, and starts of handlers
	Releases                          releases
	LanguageWork                      languageWork
	Late                              int            // settlements after the entry was lost; the worker was told so
	Zero                              map[string]int // the columns that must be zero
	Findings                          []Finding
}

const (
	maxFindings = 60 // findings kept with their history, of all columns together
	maxOfColumn = 8  // the same, of one column
)

// auditor judges messages, one at a time.
type auditor struct {
	Tally
	explainer *explainer
	commands  []Fault // commands of operators
	spans     map[string][]span
}

func newAuditor(visibility time.Duration, faults []Fault, writers []*writer, state State) *auditor {
	a := &auditor{explainer: newExplainer(visibility, faults, writers)}
	a.Deliveries, a.First, a.Retries, a.Dead = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	a.Snoozed, a.ByKind, a.spans = map[string]int{}, map[byte]int{}, map[string][]span{}
	a.Again, a.Burnt, a.Zero = map[string]int{}, map[string]int{}, map[string]int{}
	for _, f := range faults {
		if f.Queue != "" {
			a.commands = append(a.commands, f)
		}
	}
	for _, text := range state.Stuck {
		a.find(Finding{Column: columnStuck, Problem: text}, nil)
	}
	for _, text := range state.Left {
		a.find(Finding{Column: columnLeft, Problem: text}, nil)
	}
	return a
}

func (a *auditor) find(f Finding, records []record) {
	a.Zero[f.Column]++
	if len(a.Findings) >= maxFindings || a.Zero[f.Column] > maxOfColumn {
		return
	}
	for _, r := range records {
		f.History = append(f.History, r.String())
	}
	a.Findings = append(a.Findings, f)
}

// message audits one message: all its records, sorted by time, and its dead letters.
func (a *auditor) message(id string, records []record, letters []Letter) {
	slices.SortStableFunc(records, func(x, y record) int { return cmp.Compare(x.at, y.at) })
	plan, ok := planOf(id)
	complain := func(column, group, format string, args ...any) {
		a.find(Finding{Column: column, ID: id, Group: group, Problem: fmt.Sprintf(format, args...)}, records)
	}
	p := promiseOf(records)
	if !ok || !p.tried {
		complain(columnWrong, "", "delivered or dead, and no producer knows of it")
		return
	}
	a.Tried++
	a.Releases.count(records)
	a.LanguageWork.count(records)
	for _, r := range records {
		if r.verb == verbSettle && r.word == string(bridge.Lost) {
			a.Late++
		}
	}
	// A producer over HTTP repeats a request whose answer it did not get. If the message was cancelled meanwhile, the
	// repeat schedules it again. A request delayed in a gateway has the same effect.
	if p.cancelled > 0 && p.overHTTP && (p.cancelled < p.heard || a.explainer.mayBeLate(p.first, p.heard)) {
		p.cancelled, p.maybeCancelled = 0, true
	}
	if p.halted > 0 && p.overHTTP && (p.halted < p.heard || a.explainer.mayBeLate(p.first, p.heard)) {
		p.halted, p.maybeHalted = 0, true
	}
	// owed: every group must get the message, because it was accepted and certainly not cancelled.
	owed := p.taken && p.cancelled == 0 && !p.maybeCancelled && p.halted == 0 && !p.maybeHalted
	switch {
	case p.taken:
		a.Accepted++
		if p.overHTTP {
			a.PublishedHTTP++
		}
		a.ByKind[plan.kind]++
		if strings.Contains(id, "@") {
			a.Occurrences++
		}
	case p.refused && !p.maybe:
		a.Refused++
	default:
		a.Unknown++
	}
	switch {
	case p.cancelled > 0 && plan.kind == kindVersion:
		a.Overwritten++
	case p.cancelled > 0:
		a.Cancelled++
	}
	switch {
	case p.halted > 0 && p.wasHeld:
		a.HaltedHeld++
	case p.halted > 0:
		a.Halted++
	}
	if p.moved > 0 {
		a.Moved++
	}
	// destroyed: an operator deleted data of the sacrificial queue after the first try, perhaps also this message.
	destroyed := plan.queue == queueSide && slices.ContainsFunc(a.commands, func(f Fault) bool {
		return f.Queue == plan.queue && f.Until.UnixMicro() >= p.first
	})
	if p.twice && !destroyed { // the operator's command deletes dedup windows, too
		complain(columnTwice, "", "taken twice inside its dedup window")
	}
	chains := chainsOf(records, letters)
	for _, c := range chains {
		c.apart = plan.kind == kindCrash
	}
	if p.tries > 1 && p.unsure {
		for _, c := range chains {
			p.again = p.again || c.takenAgainAfter(dedupWindow)
		}
	}
	// A replaced master that went on for a moment may have delivered messages that its successor then cancelled.
	if p.cancelled > 0 {
		for _, c := range chains {
			c.entries = slices.DeleteFunc(c.entries, func(d *delivery) bool {
				return !slices.ContainsFunc(d.starts, func(s record) bool {
					return s.at > p.cancelled ||
						!a.explainer.undone(s.at, p.cancelled)
				})
			})
		}
	}
	for group, c := range chains {
		if !slices.Contains(groups, group) {
			complain(columnWrong, group, "dead letter or delivery of a group that is none: %v", c.letters)
			continue
		}
		a.timing(plan.queue, p, c, complain)
		a.Dead[group] += len(c.letters)
		for _, l := range c.letters {
			if l.Reason == lua.ReasonHandlerTimeout {
				a.Hung++
			}
		}
		if c.apart {
			a.Crashed += len(c.letters)
		}
		if p.refused && !p.maybe && !p.taken {
			complain(columnWrong, group, "refused by the server, and delivered")
		}
	}
	a.keyed(plan, id, chains)
	for _, group := range groups {
		c := chains[group]
		if c == nil {
			c = &chain{group: group}
		}
		excuse := ""
		switch {
		case destroyed:
			excuse = "an operator's command"
		case p.again:
			excuse = "sent again behind its dedup window"
		}
		a.count(c, excuse, complain)
		empty := len(c.entries)+len(c.letters) == 0
		switch {
		case destroyed:
			if column, _ := c.terminal(plan, a.acknowledged); owed && column != "" {
				a.LostByOperator++
			}
			continue
		case empty && !owed:
			continue
		}
		if !p.again { // else there are two messages
			c.owners(a.explainer.undone, func(format string, args ...any) { complain(columnOwners, group, format, args...) })
		}
		column, problem := c.terminal(plan, a.acknowledged)
		if p.halted > 0 || p.maybeHalted { // any end is allowed
			column = ""
		}
		if column == columnLost { // look again: perhaps only a replaced master knew the last deliveries
			known := a.knownToAll(c)
			switch {
			case !p.taken && a.wentWithMaster(c): // the message was lost before it was replicated
				column = ""
			case len(known.entries) == len(c.entries): // no failover explains it
			case len(known.entries) > 0:
				column, problem = known.terminal(plan, a.acknowledged)
			case !owed: // the master that knew the deliveries is gone, and no producer was told that its message stays
				column = ""
			}
		}
		if column != "" {
			complain(column, group, "%s", problem)
		}
		a.attempts(c, p, func(format string, args ...any) { complain(columnBurnt, group, format, args...) })
		a.halts(p, c, func(column, format string, args ...any) { complain(column, group, format, args...) })
	}
}

// knownToAll returns the chain without deliveries that perhaps only a replaced master knew: deliveries in the time of a
// failover that nobody settled with success.
func (a *auditor) knownToAll(c *chain) *chain {
	known := &chain{group: c.group, letters: c.letters}
	for _, d := range c.entries {
		last := slices.MaxFunc(slices.Concat(d.starts, d.settlements),
			func(x, y record) int { return cmp.Compare(x.at, y.at) })
		if d.won() != "" || !a.explainer.undone(d.added(), last.at) {
			known.entries = append(known.entries, d)
		}
	}
	return known
}

// wentWithMaster reports whether a master was replaced within a second of the last record of a chain. Its successor
// may know nothing of the message. That is no loss if no producer was told that the message was taken.
func (a *auditor) wentWithMaster(c *chain) bool {
	last := int64(0)
	for _, d := range c.entries {
		for _, r := range slices.Concat(d.starts, d.settlements) {
			last = max(last, r.at)
		}
	}
	return a.explainer.undone(last, last+time.Second.Microseconds())
}

// timing finds deliveries that were early, to the wrong group, or after a cancel. Two clocks decide what is early,
// the server's for the added entry and the worker's for the start of the handler. On this machine they are the same.
func (a *auditor) timing(queue string, p promise, c *chain, complain func(column, group, format string, args ...any)) {
	for _, d := range c.entries {
		if d.forGroup != "" && d.forGroup != c.group {
			complain(columnForeign, c.group, "entry %s is for group %s", d.entry, d.forGroup)
		}
		for _, s := range d.starts {
			due := s.due
			// If a failover undid the call that made the entry, or an operator deleted its message, then the receipt
			// is that of a later call, and says nothing about this entry.
			if !a.explainer.undone(s.at, p.due*1000) && !a.deleted(queue, s.at, p.due*1000) {
				due = max(due, p.due)
			}
			if s.at < due*1000 || d.added() < due*1000 {
				complain(columnEarly, c.group, "entry %s, due %s, was started at %s", d.entry, clock(due), clock(s.at/1000))
			}
			if p.cancelled > 0 {
				complain(columnCancelled, c.group, "entry %s was started, and the message was cancelled at %s", d.entry,
					clock(p.cancelled/1000))
			}
		}
	}
}

// deleted reports whether an operator deleted data of the queue between two times, in Unix µs.
func (a *auditor) deleted(queue string, from, until int64) bool {
	return slices.ContainsFunc(a.commands, func(f Fault) bool {
		return f.Queue == queue && f.Until.UnixMicro() >= from && f.From.UnixMicro() <= until
	})
}

// count classifies every start of a handler as a first delivery, a retry or a duplicate, and finds the fault that
// explains a duplicate. excuse explains all duplicates of the message; "" = none does.
func (a *auditor) count(c *chain, excuse string, complain func(column, group, format string, args ...any)) {
	var before *record
	retry, snoozed := false, false
	for _, d := range c.entries {
		for i := range d.starts {
			s := &d.starts[i]
			a.Deliveries[c.group]++
			if s.by.role == roleHTTPWorker {
				a.DeliveredHTTP++
			}
			switch {
			case before == nil:
				a.First[c.group]++
			case retry && i == 0 && (d.attempt > before.attempt || c.apart):
				a.Retries[c.group]++
			case snoozed && i == 0 && d.attempt >= before.attempt: // attempts used up in between are judged by attempts
				a.Snoozed[c.group]++
			case excuse != "":
				a.Again[excuse]++
			default:
				kind, ok := a.explainer.again(before.by.name, min(before.at, s.at), max(before.at, s.at))
				if ok {
					a.Again[kind]++
				} else {
					complain(columnUnexplained, c.group, "entry %s of %s came again as entry %s to %s", before.entry,
						before.by.name, d.entry, s.by.name)
				}
			}
			before = s
		}
		retry, snoozed = d.failed(), d.snoozed() || d.maySnooze()
	}
}

// attempts finds attempts that were used up although no handler failed, and the faults that explain them.
func (a *auditor) attempts(c *chain, p promise, complain func(format string, args ...any)) {
	attempt, from := 1, p.first
	var last *delivery
	// used checks the attempts that were used up before what: from the last attempt that is known to have begun, up to
	// but not including next. until is the time of what, in Unix µs.
	used := func(next int, until int64, what string) {
		for n := attempt; n < next; n++ {
			by := "" // "" = a delivery that no handler saw
			if n == attempt && last != nil && last.won() != string(bridge.Released) && !last.snoozed() {
				if last.failed() || last.ended(endDead) || last.outlastedLimit(until) {
					continue
				}
				by = last.starts[len(last.starts)-1].by.name
			}
			if kind, ok := a.explainer.burnt(by, c.group, from, until); ok {
				a.Burnt[kind]++
			} else {
				complain("before %s attempt %d was used up, and no handler failed it, and no fault explains it", what, n)
			}
		}
	}
	for _, d := range c.entries {
		used(d.attempt, d.starts[0].at, "entry "+d.entry)
		attempt, last, from = d.attempt, d, min(d.added(), d.starts[0].at)
	}
	for _, l := range c.letters {
		if !c.apart { // else the delivery that ended with it was no attempt
			used(l.Attempt+1, l.At*1000, "the dead letter")
		}
	}
}

// acknowledged reports whether a fault explains that an acknowledgement is unknown.
func (a *auditor) acknowledged(d *delivery) bool {
	s := d.starts[len(d.starts)-1]
	until := s.at
	for _, r := range slices.Concat(d.ends, d.settlements) {
		until = max(until, r.at)
	}
	_, ok := a.explainer.untold(s.by.name, s.at, until+time.Second.Microseconds())
	return ok
}
