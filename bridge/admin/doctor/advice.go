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

// Sight is what somebody has read of queues, bridges and servers for another purpose. What is zero is not known, and nothing is
// said of it.
type Sight struct {
	Prefix  string
	Queues  []QueueSight
	Bridges []view.Heartbeat
	NoBeats bool // Bridges is not known
	Servers []ServerSight
}

// ServerSight is what a master says of itself.
type ServerSight struct {
	Address string
	Info    view.Info
}

// QueueSight is what a queue holds, in all its partitions together.
type QueueSight struct {
	Queue      string
	Partitions int
	Held       bool
	inspect.Flow
	Overdue    int64
	Behind     time.Duration // how late the oldest overdue message is
	Stalled    time.Duration // for how long messages have been overdue while nothing became ready
	InSeconds  int64         // due times that look like seconds
	Entries    int64         // of the stream
	Dead       int64
	NewestDead *time.Duration // how old the newest dead letter is
	Groups     []GroupSight
	MoreGroups int // that were not looked at
}

// GroupSight is what a queue holds for one group.
type GroupSight struct {
	Name       string
	Consumers  int64
	Lag        int64
	Waiting    time.Duration // of the oldest entry that the group was not given yet
	Unread     time.Duration // for how long entries have waited while no consumer read
	Pending    int64
	OldestIdle time.Duration  // since the oldest pending entry gave a sign of life
	OldestHeld time.Duration  // for how long the entry is held that is held for longest, at least
	Holder     string         // the consumer of that entry
	Usual      *time.Duration // how long deliveries took lately; nil: not known
	Visibility time.Duration  // the visibility timeout; 0: not known
	Handler    time.Duration  // how long a handler may take by the policy; 0: no limit
}

// Advise judges what was seen by the rules of an examination, as far as a single sight allows, and asks nothing. It returns the
// worst finding first, and leaves out what another one explains, and what is a choice rather than trouble.
func Advise(s Sight) []Finding {
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

// serverSeen judges a server. Whether it keeps an append-only file is somebody's choice, which a bridge names when it starts.
func (e *examination) serverSeen(s ServerSight) {
	if since := e.now.Add(-time.Duration(s.Info.Number("uptime_in_seconds")) * time.Second); since.After(e.calm) {
		e.calm = since
	}
	judge(&Server{Address: s.Address}, s.Info, nil, func(c *Check, count int64, found string, args ...any) {
		if c.Severity == Error || c == nearlyFull || c == replicaBehind {
			e.add(e.finding(c, place{}, "", "", count, s.Address+": "+fmt.Sprintf(found, args...)))
		}
	})
}

func (e *examination) queueSeen(q QueueSight, bridged bool) {
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
	p place, g GroupSight, bridged, rests bool, say func(c *Check, key, group string, count int64, found string),
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
	// For one visibility timeout after a start of their own, or of the server, bridges reclaim nothing.
	if g.Visibility == 0 || !bridged || g.OldestIdle <= abandonedAfter(g.Visibility) ||
		e.now.Sub(e.calm) < g.Visibility+calmSlack {
		return
	}
	say(notReclaimed, p.keys.Stream, g.Name, g.Pending, fmt.Sprintf("%s, the oldest without a sign of life for %s",
		plural(g.Pending, "entry is pending", "entries are pending"), g.OldestIdle.Round(time.Second)))
}

// calmSlack is how much longer than a visibility timeout bridges may take after a start of their own, for a single sight.
const calmSlack = 10 * time.Second

// Line is the finding in one line: where, what, and what to do next.
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
