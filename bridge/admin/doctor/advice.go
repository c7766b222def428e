package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
)

// State is the state of queues, bridges and servers that a program has read for another purpose. A zero field is
// unknown, and Advise ignores it.
type State struct {
	Prefix  string
	Queues  []sizes.QueueSizes
	Bridges []view.Heartbeat
	NoBeats bool // the heartbeats could not be read, so Bridges is unknown
	Servers []ServerState

	Targets map[Group]bool  // whether the messages of a group are posted to a target of callbacks
	Rates   map[Group]Rates // means of about a minute
}

// Group names a group of a queue.
type Group struct{ Queue, Group string }

// Rates are the speeds of a group: how many messages of the queue become ready, and how many deliveries of the group
// end, per second.
type Rates struct{ Ready, Done float64 }

// ServerState is the INFO of a master.
type ServerState struct {
	Address string
	Info    view.Info
}

// Advise applies the rules of Examine to a state that was read, as far as one reading allows. It does not touch
// Redis. It returns the worst finding first. It leaves out findings that are consequences of another one, and
// settings that are a choice of the operator.
func Advise(s State) []Finding {
	e := &examination{
		Config: Config{Prefix: cmp.Or(s.Prefix, lua.DefaultPrefix)}, registry: map[string]lua.Counts{}, now: time.Now(),
		report: Report{Findings: []Finding{}},
	}
	e.globals = lua.NewGlobals(e.Prefix)
	for _, q := range s.Queues {
		e.registry[q.Queue] = lua.Counts{max(1, q.Partitions)}
	}
	for _, server := range s.Servers {
		e.adviseServer(server)
	}
	bridged := true
	if !s.NoBeats {
		if f := e.noBridge(s.Bridges); f != nil {
			bridged = false
			e.add(f)
		}
		if f := e.mixedLevels(s.Bridges); f != nil {
			e.add(f)
		}
	}
	for _, q := range s.Queues {
		e.adviseQueue(s, q, bridged)
	}
	slices.SortStableFunc(e.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Group, b.Group))
	})
	return e.report.Findings
}

// adviseServer checks a server. It does not report a server without an append-only file, because that is the operator's
// choice, and a bridge warns of it at its start.
func (e *examination) adviseServer(s ServerState) {
	started := e.now.Add(-time.Duration(s.Info.Number("uptime_in_seconds")) * time.Second)
	if started.After(e.lastStart) {
		e.lastStart = started
	}
	judge(&Server{Address: s.Address}, s.Info, nil, func(c *Check, count int64, found string, args ...any) {
		if c.Severity == Error || c == nearlyFull || c == replicaBehind {
			e.add(e.serverFinding(c, count, s.Address+": "+fmt.Sprintf(found, args...)))
		}
	})
}

// adviseQueue checks a queue and its groups. bridged is false if no bridge is alive: then noBridge is reported, and its
// consequences are not.
func (e *examination) adviseQueue(s State, q sizes.QueueSizes, bridged bool) {
	p := e.place(q.Queue, 0)
	say := func(c *Check, key, group string, count int64, found string) {
		has, known := s.Targets[Group{q.Queue, group}]
		do := ""
		if c == noConsumer || c == notRead || c == behind || c == slowWorkers {
			c, do = forTarget(c, has, known)
		}
		f := e.finding(c, p, key, group, count, found)
		f.Do = cmp.Or(do, f.Do)
		f.Repair = "" // Mend needs a report of Examine
		e.add(f)
	}
	behind := time.Duration(q.Behind)
	late := fmt.Sprintf("%s overdue, the oldest by %s", plural(q.Overdue, "message is", "messages are"),
		behind.Round(time.Second))
	switch limit := overdueAfter(e.partitions()); {
	case q.Held && behind > limit:
		say(heldOverdue, p.keys.Due, "", q.Overdue, late+", and held")
	case q.Limited() && behind > limit:
		say(limited, p.keys.Due, "", q.Overdue, late)
	case bridged && time.Duration(q.Stalled) > limit:
		say(overdue, p.keys.Due, "", q.Overdue, late)
	}
	if q.LooksSeconds > 0 {
		found := plural(q.LooksSeconds, "due time", "due times") + " between 10^9 and 10^11"
		say(seconds, p.keys.Due, "", q.LooksSeconds, found)
	}
	if q.Entries > 0 && len(q.Groups)+q.MoreGroups == 0 {
		say(noGroup, p.keys.Stream, "", q.Entries, plural(q.Entries, "entry, and no group", "entries, and no group"))
	}
	for _, g := range q.Groups {
		e.adviseGroup(s, p, g, bridged, q.HeldWorkers, say)
	}
	letters := plural(q.Dead, "dead letter", "dead letters")
	newest := known(q.NewestDead)
	switch fresh := q.Dead > 0 && q.NewestDead != nil && newest < sizes.FreshLetter; {
	case fresh && q.Dead < deadMany:
		say(freshDead, p.keys.Dead, "", q.Dead, recentLetter(letters, newest))
	case fresh:
		say(manyDead, p.keys.Dead, "", q.Dead, recentLetter(letters, newest))
	case q.Dead >= deadMany:
		say(manyDead, p.keys.Dead, "", q.Dead, letters)
	}
}

// adviseGroup checks a group, and calls say for each defect. bridged is as for adviseQueue.
func (e *examination) adviseGroup(
	s State, p place, g sizes.GroupSizes, bridged, workersPaused bool,
	say func(c *Check, key, group string, count int64, found string),
) {
	if lua.CheckGroup(g.Name) != nil {
		say(oddGroup, p.keys.Stream, g.Name, 1, "a group called "+shown(g.Name))
		return
	}
	waiting, unread := known(g.Waiting), known(g.Unread)
	c := waitingCheck(int(g.Consumers), waiting, unread, g.Visibility)
	hasTarget := s.Targets[Group{p.queue, g.Name}]
	slow := ""
	if rates, known := s.Rates[Group{p.queue, g.Name}]; known && (c == nil || c == behind) {
		if slow = tooSlow(g.Lag, g.Consumers, waiting, rates, hasTarget); slow != "" {
			c = slowWorkers
		}
	}
	if c != nil && !workersPaused {
		found := fmt.Sprintf("%s, the oldest for %s", plural(g.Lag, "entry waits", "entries wait"),
			waiting.Round(time.Second))
		switch {
		case c == slowWorkers:
			found += "; " + slow
		case c == noConsumer && hasTarget:
			found += ", and nothing takes them to its target"
		case c == noConsumer:
			found += ", and it has no consumers"
		case c == notRead && hasTarget:
			found += fmt.Sprintf("; its target has taken nothing for %s", unread.Round(time.Second))
		case c == notRead:
			found += fmt.Sprintf("; %s, and none has read for %s", plural(g.Consumers, "consumer", "consumers"),
				unread.Round(time.Second))
		}
		say(c, p.keys.Stream, g.Name, g.Lag, found)
	}
	idle, usual := known(g.OldestIdle), (*time.Duration)(g.Usual)
	if g.Visibility > 0 && g.HeldLongest != nil && idle <= abandonedAfter(g.Visibility) {
		held := time.Duration(g.HeldLongest.Held)
		if held > heldTooLong(g.Visibility, g.HandlerTimeout, usual) {
			say(heldLong, p.keys.Stream, g.Name, 1, heldFound(1, held, g.HeldLongest.Consumer, usual))
		}
	}
	// For one visibility timeout after the start of a bridge or of the server, the bridge reclaims nothing.
	if g.Visibility == 0 || !bridged || idle <= abandonedAfter(g.Visibility) ||
		e.now.Sub(e.lastStart) < g.Visibility+startSlack {
		return
	}
	say(notReclaimed, p.keys.Stream, g.Name, g.Pending, fmt.Sprintf("%s, the oldest without a sign of life for %s",
		plural(g.Pending, "entry is pending", "entries are pending"), idle.Round(time.Second)))
}

// known returns a duration, or 0 if the duration is unknown.
func known(d *view.Millis) time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(*d)
}

// startSlack is added to the visibility timeout for which bridges reclaim nothing after a start, because Advise sees
// the state only once.
const startSlack = 10 * time.Second

// Line returns the finding in one line: the place, the defect, and what to do next.
func (f Finding) Line() string {
	where := f.Queue
	if f.Group != "" {
		where += ", group " + shown(f.Group)
	}
	if where != "" {
		where += ": "
	}
	return where + f.Found + ". Next: " + f.Do
}
