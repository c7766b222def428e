package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// State is the state of queues, bridges and servers that a program has read for another purpose. A zero field is
// unknown, and Advise ignores it.
type State struct {
	Prefix  string
	Queues  []QueueState
	Bridges []view.Heartbeat
	NoBeats bool // Bridges is unknown
	Servers []ServerState
}

// ServerState is the INFO of a master.
type ServerState struct {
	Address string
	Info    view.Info
}

// QueueState is the state of a queue, over all its partitions.
type QueueState struct {
	Queue      string
	Partitions int
	Held       bool
	inspect.Flow
	Overdue    int64
	Behind     time.Duration // how late the oldest overdue message is
	Stalled    time.Duration // for how long messages have been overdue while none became ready
	InSeconds  int64         // due times that look like seconds
	Entries    int64         // of the stream
	Dead       int64
	NewestDead *time.Duration // age of the newest dead letter
	Groups     []GroupState
	MoreGroups int // groups that were not read
}

// GroupState is the state of one group of a queue.
type GroupState struct {
	Name       string
	Consumers  int64
	Lag        int64
	Waiting    time.Duration // age of the oldest unread entry
	Unread     time.Duration // for how long entries have waited while no consumer read
	Pending    int64
	OldestIdle time.Duration  // since the oldest pending entry was delivered or extended
	OldestHeld time.Duration  // lower bound of the longest time that a consumer has held an entry
	Holder     string         // the consumer of that entry
	Usual      *time.Duration // how long recent deliveries took; nil = unknown
	Visibility time.Duration  // the visibility timeout; 0 = unknown
	Handler    time.Duration  // the policy's HandlerTimeout; 0 = no limit
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
		e.serverSeen(server)
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
		e.queueSeen(q, bridged)
	}
	slices.SortStableFunc(e.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Group, b.Group))
	})
	return e.report.Findings
}

// serverSeen checks a server. Running without an append-only file is the operator's choice, and a bridge warns of it
// at its start, so serverSeen does not report it.
func (e *examination) serverSeen(s ServerState) {
	if since := e.now.Add(-time.Duration(s.Info.Number("uptime_in_seconds")) * time.Second); since.After(e.calm) {
		e.calm = since
	}
	judge(&Server{Address: s.Address}, s.Info, nil, func(c *Check, count int64, found string, args ...any) {
		if c.Severity == Error || c == nearlyFull || c == replicaBehind {
			e.add(e.finding(c, place{}, "", "", count, s.Address+": "+fmt.Sprintf(found, args...)))
		}
	})
}

func (e *examination) queueSeen(q QueueState, bridged bool) {
	p := e.place(q.Queue, 0)
	say := func(c *Check, key, group string, count int64, found string) {
		f := e.finding(c, p, key, group, count, found)
		f.Repair = "" // Mend needs a report of Examine
		e.add(f)
	}
	late := fmt.Sprintf("%s overdue, the oldest by %s", plural(q.Overdue, "message is", "messages are"),
		q.Behind.Round(time.Second))
	switch limit := overdueAfter(e.partitions()); {
	case q.Held && q.Behind > limit:
		say(heldOverdue, p.keys.Due, "", q.Overdue, late+", and held")
	case q.Limited() && q.Behind > limit:
		say(limited, p.keys.Due, "", q.Overdue, late)
	case bridged && q.Stalled > limit:
		say(overdue, p.keys.Due, "", q.Overdue, late)
	}
	if q.InSeconds > 0 {
		say(seconds, p.keys.Due, "", q.InSeconds, plural(q.InSeconds, "due time", "due times")+" between 10^9 and 10^11")
	}
	if q.Entries > 0 && len(q.Groups)+q.MoreGroups == 0 {
		say(noGroup, p.keys.Stream, "", q.Entries, plural(q.Entries, "entry, and no group", "entries, and no group"))
	}
	for _, g := range q.Groups {
		e.groupSeen(p, g, bridged, q.HeldWorkers, say)
	}
	letters := plural(q.Dead, "dead letter", "dead letters")
	switch fresh := q.Dead > 0 && q.NewestDead != nil && *q.NewestDead < inspect.FreshLetter; {
	case fresh && q.Dead < deadMany:
		say(freshDead, p.keys.Dead, "", q.Dead, recentLetter(letters, *q.NewestDead))
	case fresh:
		say(manyDead, p.keys.Dead, "", q.Dead, recentLetter(letters, *q.NewestDead))
	case q.Dead >= deadMany:
		say(manyDead, p.keys.Dead, "", q.Dead, letters)
	}
}

func (e *examination) groupSeen(
	p place, g GroupState, bridged, rests bool, say func(c *Check, key, group string, count int64, found string),
) {
	if lua.CheckGroup(g.Name) != nil {
		say(oddGroup, p.keys.Stream, g.Name, 1, "a group called "+shown(g.Name))
		return
	}
	if c := waitingCheck(int(g.Consumers), g.Waiting, g.Unread, g.Visibility); c != nil && !rests {
		found := fmt.Sprintf("%s, the oldest for %s", plural(g.Lag, "entry waits", "entries wait"), g.Waiting.Round(time.Second))
		switch c {
		case noConsumer:
			found += ", and it has no consumers"
		case notRead:
			found += fmt.Sprintf("; %s, and none has read for %s", plural(g.Consumers, "consumer", "consumers"),
				g.Unread.Round(time.Second))
		}
		say(c, p.keys.Stream, g.Name, g.Lag, found)
	}
	if g.Visibility > 0 && g.OldestHeld > heldTooLong(g.Visibility, g.Handler, g.Usual) &&
		g.OldestIdle <= abandonedAfter(g.Visibility) {
		say(heldLong, p.keys.Stream, g.Name, 1, heldFound(1, g.OldestHeld, g.Holder, g.Usual))
	}
	// Bridges reclaim nothing for one visibility timeout after their own start or the server's.
	if g.Visibility == 0 || !bridged || g.OldestIdle <= abandonedAfter(g.Visibility) ||
		e.now.Sub(e.calm) < g.Visibility+calmSlack {
		return
	}
	say(notReclaimed, p.keys.Stream, g.Name, g.Pending, fmt.Sprintf("%s, the oldest without a sign of life for %s",
		plural(g.Pending, "entry is pending", "entries are pending"), g.OldestIdle.Round(time.Second)))
}

// calmSlack is added to the visibility timeout for which bridges reclaim nothing after a start, because Advise sees
// the state only once.
const calmSlack = 10 * time.Second

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
