package inspect

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// figures are the sizes of a partition, or the sums of several.
type figures struct {
	held                              bool
	flow                              Flow
	scheduled, overdue, entries, dead int64
	behind                            view.Millis // lateness of the oldest overdue message
	ready                             int64
	readyApprox                       bool
	groups                            []*groupFigures // by name
	moreGroups                        int             // without figures
	stalled                           view.Millis     // see QueueStats
	letterAge                         *view.Millis    // of the newest dead letter

	// set by a Watcher only
	late *view.Millis // see QueueSample

	// set by Stats only
	next         time.Time // the earliest future due time
	windows      int64
	looksSeconds int64            // due times that look like seconds
	parked       int64            // messages that wait for their keys
	turns        int64            // places of all keys, of messages in flight and of waiting ones
	memory       map[string]int64 // by the last part of a key's name
	warnings     []string
}

// groupFigures are the figures of a group in a partition, or the sums over several.
type groupFigures struct {
	name      string
	lag       int64
	lagApprox bool
	pending   int64

	waiting, unread *view.Millis  // see GroupStats; unread is the greatest of the partitions
	visibility      time.Duration // set by a Watcher: visibility timeout, if the group holds entries
	handlerTimeout  time.Duration // set by a Watcher: that of the policy, likewise

	oldest     *PendingEntry
	oldestIdle *view.Millis  // idle time of the oldest entry; the greatest of the partitions
	longest    *PendingEntry // the entry held for the longest time
	usual      *view.Millis  // recent duration of deliveries; nil: unknown

	consumers       map[string]bool // without the reclaimer; true: alive
	manyConsumers   int64           // their number, if there are too many for a Watcher to read
	consumersApprox bool            // it is unknown which are alive

	retrying       int64
	retryingApprox bool
	dead           int64
	deadApprox     bool
	policy         stream.Policy
}

// partition is one partition of a queue while it is read.
type partition struct {
	figures
	name  string
	index int
	keys  lua.Keys
	err   error

	metas    int64
	first    []rueidis.ZScore  // first member of the schedule
	upcoming []rueidis.ZScore  // the first member that is not due
	settings map[string]string // of the queue, and of its groups
	letters  []rueidis.XRangeSlice
	standing map[string]standing // set by a Watcher, by group
	infos    []view.GroupInfo    // by name
	details  []groupReplies      // for the first groups
	notes    []lua.HeldNotes     // for the groups in holding
	holding  []string            // of the first groups, those with pending entries, by name
	retries  []string            // set by a Watcher: the first members of the schedule, including retries
	newest   []rueidis.XRangeSlice
	policies map[string]stream.Policy // set by Stats, by group
}

// groupReplies are the server's replies about one group.
type groupReplies struct {
	oldest    []view.Pending
	consumers []view.Consumer
}

// partitionReader reads partitions at one of two depths. A Watcher reads figures that cost the server next to nothing:
// the questions below, for many partitions in one round trip. Stats asks them without bounds, and then reads on: see
// deepReader.
type partitionReader struct {
	c    rueidis.Client
	now  time.Time // by the server's clock
	deep bool
}

func newPartitions(prefix, queue string, counts lua.Counts) []*partition {
	names := counts.Names(queue)
	parts := make([]*partition, len(names))
	for i, name := range names {
		parts[i] = &partition{name: name, index: i, keys: lua.NewKeys(prefix, name)}
	}
	return parts
}

// counts asks for all sizes, and for the groups.
func (r *partitionReader) counts(p *partition) []view.Question {
	b, k, now := r.c.B, p.keys, strconv.FormatInt(r.now.UnixMilli(), 10)
	all := []view.Question{
		view.Number(b().Zcard().Key(k.Due).Build(), &p.scheduled),
		view.Number(b().Zcount().Key(k.Due).Min("-inf").Max(now).Build(), &p.overdue),
		view.Number(b().Hlen().Key(k.Meta).Build(), &p.metas),
		view.Number(b().Xlen().Key(k.Stream).Build(), &p.entries),
		view.Number(b().Xlen().Key(k.Dead).Build(), &p.dead),
		view.Scores(b().Zrange().Key(k.Due).Min("0").Max("0").Withscores().Build(), &p.first),
		r.settings(k.Policy, &p.settings),
		view.GroupsOf(r.c, k.Stream, &p.infos),
	}
	if r.deep {
		all = append(all,
			view.Number(b().Zcount().Key(k.Due).Min("1e9").Max("1e11").Build(), &p.looksSeconds),
			view.Number(b().Zcard().Key(k.Seen).Build(), &p.windows),
			view.Scores(b().Zrangebyscore().Key(k.Due).Min("("+now).Max("("+lua.ParkedFrom).Withscores().Limit(0, 1).Build(), &p.upcoming),
			view.Number(b().Zcount().Key(k.Due).Min(lua.ParkedFrom).Max(lua.ParkedTo).Build(), &p.parked),
			view.Number(b().Zcard().Key(k.Turns).Build(), &p.turns))
	}
	return all
}

// groupQuestions asks for the oldest pending entry and the consumers of each group, and for the notes of when entries
// were delivered. A Watcher asks within its bounds.
func (r *partitionReader) groupQuestions(p *partition) (all []view.Question) {
	slices.SortFunc(p.infos, func(a, b view.GroupInfo) int { return strings.Compare(a.Name, b.Name) })
	p.details = make([]groupReplies, len(p.infos))
	if !r.deep {
		p.details = p.details[:min(sampleGroups, len(p.infos))]
	}
	for i := range p.details {
		g, d := p.infos[i], &p.details[i]
		if g.Pending > 0 {
			p.holding = append(p.holding, g.Name)
			oldest := view.PendingOf(r.c, p.keys.Stream, g.Name, view.PendingRange{Count: 1}, &d.oldest)
			all = append(all, oldest.OrNoGroup())
		}
		if g.Consumers > 0 && (r.deep || g.Consumers <= sampleConsumers) {
			all = append(all, view.ConsumersOf(r.c, p.keys.Stream, g.Name, &d.consumers).OrNoGroup())
		}
	}
	if len(p.holding) > 0 {
		all = append(all, view.HeldNotesOf(r.c, p.keys, p.holding, &p.notes))
	}
	return all
}

// conclude computes the figures from the answers. lagOf returns the backlog of a group.
func (r *partitionReader) conclude(p *partition, lagOf func(group int) groupLag) {
	p.held, p.flow = p.settings[stream.SettingHeld] == "1", FlowOf(p.settings)
	if len(p.first) > 0 && p.overdue > 0 {
		p.behind = view.Millis(max(0, r.now.Sub(view.ScoreTime(p.first[0].Score))))
		p.stalled = r.stalled(p)
	}
	if len(p.upcoming) > 0 {
		p.next = view.ScoreTime(p.upcoming[0].Score)
	}
	if len(p.infos) == 0 {
		p.ready = p.entries
	}
	for i, info := range p.infos {
		lag := lagOf(i)
		if lag.entries >= p.ready {
			p.ready, p.readyApprox = lag.entries, lag.approx
		}
		if i >= len(p.details) {
			p.moreGroups++
			continue
		}
		g := &groupFigures{name: info.Name, lag: lag.entries, lagApprox: lag.approx, pending: info.Pending,
			consumers: map[string]bool{}, policy: p.policies[info.Name],
			retryingApprox: !r.deep && p.metas > 0 && p.scheduled > sampleRetries}
		p.groups = append(p.groups, g)
		if d := p.details[i]; len(d.oldest) > 0 {
			notes := p.notesOf(info.Name)
			oldest := pendingEntryOf(p.index, d.oldest[0], notes, r.now)
			g.oldest, g.oldestIdle, g.longest = &oldest, &oldest.Idle, &oldest
			if usual := view.Millis(notes.Usual); usual >= 0 {
				g.usual = &usual
			}
		}
		if !r.deep && info.Consumers > sampleConsumers {
			g.manyConsumers, g.consumersApprox = info.Consumers, true
		}
		p.details[i].consumers = slices.DeleteFunc(p.details[i].consumers, func(one view.Consumer) bool {
			return one.Name == lua.ReclaimConsumer
		})
		g.wait(r.now, lag, p.details[i].consumers)
		for _, one := range p.details[i].consumers {
			// If the server tells Inactive, Idle is the time since the last read; else since the last read that
			// returned an entry.
			g.consumersApprox = g.consumersApprox || !one.Tells
			g.consumers[one.Name] = !one.Tells || one.Idle <= consumerAlive
		}
	}
}

// notesOf returns the notes of bridges about a group.
func (p *partition) notesOf(group string) lua.HeldNotes {
	if at, found := slices.BinarySearch(p.holding, group); found && at < len(p.notes) {
		return p.notes[at]
	}
	return lua.HeldNotes{Usual: -1}
}

// addRetries counts the retries among members of the schedule.
func (p *partition) addRetries(members []string) {
	for _, member := range members {
		if m := lua.ParseMember(member); m.Kind != lua.MemberFirst {
			if g := p.group(m.Group); g != nil {
				g.retrying++
			}
		}
	}
}

// group returns a group by name; nil if there is none.
func (f *figures) group(name string) *groupFigures {
	if at, found := f.findGroup(name); found {
		return f.groups[at]
	}
	return nil
}

func (f *figures) findGroup(name string) (at int, found bool) {
	return slices.BinarySearchFunc(f.groups, name, func(g *groupFigures, name string) int {
		return strings.Compare(g.name, name)
	})
}

// sum adds up partitions, except those that could not be read.
func sum(parts []*partition) (whole figures) {
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		whole.held = whole.held || p.held
		if whole.flow == (Flow{}) { // of several partitions, the first one counts
			whole.flow = p.flow
		}
		whole.scheduled += p.scheduled
		whole.overdue += p.overdue
		whole.entries += p.entries
		whole.dead += p.dead
		whole.behind = max(whole.behind, p.behind)
		whole.stalled = max(whole.stalled, p.stalled)
		if p.letterAge != nil && (whole.letterAge == nil || *p.letterAge < *whole.letterAge) {
			whole.letterAge = p.letterAge
		}
		whole.ready += p.ready
		whole.readyApprox = whole.readyApprox || p.readyApprox
		whole.moreGroups = max(whole.moreGroups, p.moreGroups)
		whole.late = longest(whole.late, p.late)
		if !p.next.IsZero() && (whole.next.IsZero() || p.next.Before(whole.next)) {
			whole.next = p.next
		}
		whole.windows += p.windows
		whole.looksSeconds += p.looksSeconds
		whole.parked += p.parked
		whole.turns += p.turns
		for name, n := range p.memory {
			if whole.memory == nil {
				whole.memory = map[string]int64{}
			}
			whole.memory[name] += n
		}
		for _, warning := range p.warnings {
			if !slices.Contains(whole.warnings, warning) {
				whole.warnings = append(whole.warnings, warning)
			}
		}
		for _, g := range p.groups {
			at, found := whole.findGroup(g.name)
			if !found {
				whole.groups = slices.Insert(whole.groups, at, &groupFigures{name: g.name, policy: g.policy,
					consumers: map[string]bool{}})
			}
			whole.groups[at].add(g)
		}
	}
	return whole
}

// add adds the figures of the group in another partition.
func (g *groupFigures) add(other *groupFigures) {
	g.lag += other.lag
	g.lagApprox = g.lagApprox || other.lagApprox
	g.pending += other.pending
	g.waiting, g.unread = longest(g.waiting, other.waiting), longest(g.unread, other.unread)
	g.visibility = max(g.visibility, other.visibility)
	g.handlerTimeout = max(g.handlerTimeout, other.handlerTimeout)
	if other.oldest != nil && (g.oldest == nil || comparePending(*other.oldest, *g.oldest) < 0) {
		g.oldest = other.oldest
	}
	g.oldestIdle = longest(g.oldestIdle, other.oldestIdle)
	if other.longest != nil && (g.longest == nil || other.longest.Held > g.longest.Held) {
		g.longest = other.longest
	}
	g.usual = longest(g.usual, other.usual)
	for name, alive := range other.consumers {
		g.consumers[name] = g.consumers[name] || alive
	}
	g.manyConsumers = max(g.manyConsumers, other.manyConsumers)
	g.consumersApprox = g.consumersApprox || other.consumersApprox
	g.retrying += other.retrying
	g.retryingApprox = g.retryingApprox || other.retryingApprox
	g.dead += other.dead
	g.deadApprox = g.deadApprox || other.deadApprox
}

func longest(a, b *view.Millis) *view.Millis {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}
