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

// Columns of the result that must be zero.
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

// Letter is a dead letter that was found at the end.
type Letter struct {
	Queue, ID, Group, Reason, Entry string
	Attempt                         int
	At                              int64 // Unix ms
}

// State is what Redis holds when everything has come to rest.
type State struct {
	Letters []Letter
	Stuck   []string // what did not come to rest while the holder still held
	Left    []string // keys, members, entries that should be gone
}

// Finding is one violation.
type Finding struct {
	Column, ID, Group, Problem string
	History                    []string // every record of the message; only of the first findings
}

// Tally is what an audit counts.
type Tally struct {
	Tried, Accepted, Unknown, Refused int // messages
	Cancelled, Moved                  int
	Halted, HaltedHeld                int            // cancelled wherever they were: held by nobody, and by somebody
	Hung                              int            // dead letters of handlers that outlasted their limit
	Deliveries, First, Retries, Dead  map[string]int // by group
	Snoozed                           map[string]int // likewise: deliveries after a snooze
	ByKind                            map[byte]int   // accepted, by kind
	Crashed                           int            // dead letters of kindCrash
	Occurrences                       int            // accepted, of what recurs
	Overwritten                       int            // versions that a newer one has replaced
	Again                             map[string]int // duplicates by the fault that explains them
	Burnt                             map[string]int // attempts that no handler failed, by the fault that explains them
	LostByOperator                    int            // messages × groups
	PublishedHTTP, DeliveredHTTP      int            // messages accepted, and starts of handlers, through gateways
	Releases                          releases
	Late                              int            // exits that were told that they came too late
	Zero                              map[string]int // the columns that must be zero
	Findings                          []Finding
}

const (
	maxFindings = 60 // kept in full, and of a column
	maxOfColumn = 8
)

// auditor judges one message at a time.
type auditor struct {
	Tally
	explainer *explainer
	commands  []Fault // operators' own
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

// message audits all records of one message, sorted by time, and its dead letters.
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
	for _, r := range records {
		if r.verb == verbExit && r.word == string(bridge.Lost) {
			a.Late++
		}
	}
	// Who publishes again what it was not told of schedules anew what was cancelled meanwhile: so may a gateway that was held up.
	if p.cancelled > 0 && p.overHTTP && (p.cancelled < p.heard || a.explainer.mayBeLate(p.first, p.heard)) {
		p.cancelled, p.maybeCancelled = 0, true
	}
	if p.halted > 0 && p.overHTTP && (p.halted < p.heard || a.explainer.mayBeLate(p.first, p.heard)) {
		p.halted, p.maybeHalted = 0, true
	}
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
	destroyed := plan.queue == queueSide && slices.ContainsFunc(a.commands, func(f Fault) bool {
		return f.Queue == plan.queue && f.Until.UnixMicro() >= p.first
	})
	if p.twice && !destroyed { // an operator's command forgets dedup windows, too
		complain(columnTwice, "", "taken twice inside its dedup window")
	}
	chains := chainsOf(records, letters)
	for _, c := range chains {
		c.apart = plan.kind == kindCrash
	}
	if p.tries > 1 && p.unsure {
		for _, c := range chains {
			p.again = p.again || c.takenBehind(dedupWindow)
		}
	}
	// a master that went on for a moment after it was replaced may have delivered what its successor then cancelled
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
		if !p.again { // else these are two messages
			c.owners(a.explainer.undone, func(format string, args ...any) { complain(columnOwners, group, format, args...) })
		}
		column, problem := c.terminal(plan, a.acknowledged)
		if p.halted > 0 || p.maybeHalted { // it may end anywhere
			column = ""
		}
		if column == columnLost { // unless it ends with what only a master knew that was replaced
			known := a.knownToAll(c)
			switch {
			case !p.taken && a.wentWithMaster(c): // all of it, before it was replicated
				column = ""
			case len(known.entries) == len(c.entries):
			case len(known.entries) > 0:
				column, problem = known.terminal(plan, a.acknowledged)
			case !p.taken: // nobody was told that it is taken, and it went with the master that took it
				column = ""
			}
		}
		if column != "" {
			complain(column, group, "%s", problem)
		}
		a.attempts(c, p, func(format string, args ...any) { complain(columnBurnt, group, format, args...) })
		a.halts(p, c, func(column, format string, args ...any) { complain(column, group, format, args...) })
		a.laws(plan, p, c, func(column, format string, args ...any) { complain(column, group, format, args...) })
	}
}

// knownToAll is a chain without the deliveries of which only a master may have known that went on for a moment after it was
// replaced: who had them was told in the end that they are not his.
func (a *auditor) knownToAll(c *chain) *chain {
	known := &chain{group: c.group, letters: c.letters}
	for _, d := range c.entries {
		last := slices.MaxFunc(slices.Concat(d.starts, d.exits), func(x, y record) int { return cmp.Compare(x.at, y.at) })
		if d.won() != "" || !a.explainer.undone(d.starts[0].at, last.at) {
			known.entries = append(known.entries, d)
		}
	}
	return known
}

// wentWithMaster says whether a master was replaced within a second of the last that is known of a chain: its successor may know
// nothing of any of it, and that is no loss when nobody was told that the message is taken.
func (a *auditor) wentWithMaster(c *chain) bool {
	last := int64(0)
	for _, d := range c.entries {
		for _, r := range slices.Concat(d.starts, d.exits) {
			last = max(last, r.at)
		}
	}
	return a.explainer.undone(last, last+time.Second.Microseconds())
}

// timing finds deliveries that were early, to the wrong group, or after a cancel. Early is by two clocks, which are one on this
// machine: the server's at which the entry was added, and the worker's at which the handler started.
func (a *auditor) timing(queue string, p promise, c *chain, complain func(column, group, format string, args ...any)) {
	for _, d := range c.entries {
		if d.meant != "" && d.meant != c.group {
			complain(columnForeign, c.group, "entry %s is for group %s", d.entry, d.meant)
		}
		for _, s := range d.starts {
			due := s.due
			// else the receipt may be that of a later call, and the entry that of one undone, or deleted by an operator
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

// deleted: an operator deleted something from the queue between two moments, in µs.
func (a *auditor) deleted(queue string, from, until int64) bool {
	return slices.ContainsFunc(a.commands, func(f Fault) bool {
		return f.Queue == queue && f.Until.UnixMicro() >= from && f.From.UnixMicro() <= until
	})
}

// count sorts every start of a handler into first deliveries, retries and duplicates, and finds the fault that explains a
// duplicate.
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
			case snoozed && i == 0 && d.attempt >= before.attempt: // what used attempts up in between is judged with those
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

// attempts finds attempts that were used up though no handler failed, and the faults that explain them.
func (a *auditor) attempts(c *chain, p promise, complain func(format string, args ...any)) {
	attempt, from := 1, p.first
	var last *delivery
	// The attempts from the last one that is known to have begun, up to but not including next, were used up.
	used := func(next int, until int64, what string) {
		for n := attempt; n < next; n++ {
			by := "" // of a delivery that no handler saw
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
		if !c.apart { // else what ended with it was no attempt
			used(l.Attempt+1, l.At*1000, "the dead letter")
		}
	}
}

// acknowledged says whether a fault explains that nobody knows of an acknowledgement.
func (a *auditor) acknowledged(d *delivery) bool {
	s := d.starts[len(d.starts)-1]
	until := s.at
	for _, r := range slices.Concat(d.ends, d.exits) {
		until = max(until, r.at)
	}
	_, ok := a.explainer.untold(s.by.name, s.at, until+time.Second.Microseconds())
	return ok
}
