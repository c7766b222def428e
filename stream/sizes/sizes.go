package sizes

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file holds the figures of partitions: their fields, the questions that read them, and their sums. To add a
// figure that one Redis command answers, change only this file of the package.

// Sizes are the figures of a partition, or of all partitions of a queue together. Counts are of messages, entries or
// dead letters, and are taken one after the other. Times are by the server's clock. A figure that a reader does not
// read is zero: see QueueStats, QueueSample and PartitionState.
type Sizes struct {
	Held bool `json:"held"`
	Flow

	Scheduled int64       `json:"scheduled"` // includes retries, and overdue messages
	Overdue   int64       `json:"overdue"`
	Behind    view.Millis `json:"-"`                 // lateness of the oldest overdue message; 0: unknown
	Stalled   view.Millis `json:"stalled_ms"`        // how long messages have been overdue while none became ready
	NextDue   time.Time   `json:"next_due,omitzero"` // the earliest future due time

	// Late is the greatest lateness of the newest entries. The lateness of an entry is the time from when it was due to
	// when it became ready. Nil: no entry was seen within a minute. Entries that a worker acknowledged before the look
	// are not seen.
	Late *view.Millis `json:"late_ms,omitempty"`

	WaitForKey   int64 `json:"wait_for_key,omitempty"`   // due, but another message of their ordering key is in flight
	Turns        int64 `json:"turns,omitempty"`          // messages with an ordering key that are in flight or waiting
	LooksSeconds int64 `json:"due_in_seconds,omitempty"` // due times that seem to be seconds instead of milliseconds

	// Ready is the number of entries that at least one group has not been given. Without groups it counts all entries.
	Ready       int64 `json:"ready"`
	ReadyApprox bool  `json:"ready_approx,omitempty"`
	Entries     int64 `json:"entries"` // of the stream: ready, pending, and acknowledged but not freed yet
	Dead        int64 `json:"dead"`

	// NewestDead is the age of the newest dead letter. Nil: there is none. Stats read it only for a queue with a group.
	// A Watcher reads it when it is less than FreshLetter.
	NewestDead *view.Millis `json:"newest_dead_ms,omitempty"`

	// Memory is the bytes of each Redis key, by the last part of its name. Keys whose size the server does not tell are
	// missing.
	Memory map[string]int64 `json:"memory_bytes,omitempty"`

	windows int64 // open dedup windows
}

// GroupSizes are the figures of a group in a partition, or in all partitions of a queue together.
type GroupSizes struct {
	Name string `json:"name"`

	// Lag is the number of entries that wait for their first delivery to the group. LagApprox: it is estimated, or an
	// upper bound.
	Lag       int64 `json:"lag"`
	LagApprox bool  `json:"lag_approx,omitempty"`

	// Waiting is how long the oldest entry of the lag has waited; nil: no entry waits. WaitingApprox: it is a lower
	// bound. Unread is how long entries have waited while no consumer of the group read. Both are of the partition
	// where they are longest.
	Waiting       *view.Millis `json:"waiting_ms,omitempty"`
	WaitingApprox bool         `json:"waiting_approx,omitempty"`
	Unread        *view.Millis `json:"unread_ms,omitempty"`

	Pending     int64         `json:"pending"`
	OldestEntry *PendingEntry `json:"-"` // the oldest pending entry, not the longest idle one
	OldestIdle  *view.Millis  `json:"-"` // greatest idle time of the oldest pending entries of all partitions
	HeldLongest *PendingEntry `json:"-"` // the entry held for the longest time, of the oldest entries of all partitions

	// Usual is the recent duration of deliveries, in the partition where they took longest; nil: it is unknown.
	Usual *view.Millis `json:"usual_ms,omitempty"`

	// Visibility and HandlerTimeout are the timeouts of the group's policy, the greatest of all partitions. 0: unknown;
	// a HandlerTimeout of 0 may also mean that there is no limit. A Watcher reads them if the group has pending
	// entries.
	Visibility     time.Duration `json:"-"`
	HandlerTimeout time.Duration `json:"-"`

	Consumers int64 `json:"consumers"` // each counts once, however many partitions it reads

	Retrying       int64 `json:"retrying"` // scheduled retries for the group
	RetryingApprox bool  `json:"retrying_approx,omitempty"`

	aliveByName   map[string]bool // by consumer, without the reclaimer; true: it read within the last minute
	manyConsumers int64           // the number of consumers if they are too many to read, else 0
	alive         int64           // consumers that read within the last minute
	aliveApprox   bool            // before Redis 7.2 an idle consumer looks like a dead one, and all count as alive
	dead          int64           // dead letters of the group
	deadApprox    bool
}

// MemoryBytes returns the bytes of all keys, or -1 if the server does not tell them.
func (s Sizes) MemoryBytes() (sum int64) {
	for _, bytes := range s.Memory {
		sum += bytes
	}
	if sum == 0 && s.Scheduled+s.Entries+s.Dead > 0 {
		return -1
	}
	return sum
}

// sizeQuestions asks for all sizes of a partition, for its settings, and for its groups.
func (r *reader) sizeQuestions(p *partition) []view.Question {
	b, k, now := r.c.B, p.keys, strconv.FormatInt(r.now.UnixMilli(), 10)
	all := []view.Question{
		view.Number(b().Zcard().Key(k.Due).Build(), &p.Scheduled),
		view.Number(b().Zcount().Key(k.Due).Min("-inf").Max(now).Build(), &p.Overdue),
		view.Number(b().Hlen().Key(k.Meta).Build(), &p.metas),
		view.Number(b().Xlen().Key(k.Stream).Build(), &p.Entries),
		view.Number(b().Xlen().Key(k.Dead).Build(), &p.Dead),
		view.Scores(b().Zrange().Key(k.Due).Min("0").Max("0").Withscores().Build(), &p.first),
		r.settings(k.Policy, &p.settings),
		view.GroupsOf(r.c, k.Stream, &p.infos),
	}
	next := b().Zrange().Key(k.Due).Min("("+now).Max("("+lua.ParkedFrom).Byscore().Limit(0, 1).Withscores().Build()
	all = append(all, view.Scores(next, &p.upcoming), view.Number(b().Zcard().Key(k.Turns).Build(), &p.Turns))
	if r.depth == scrape {
		return append(all, r.uncountedLetter(p))
	}
	return append(all,
		view.Number(b().Zcount().Key(k.Due).Min(earliestSeconds).Max(latestSeconds).Build(), &p.LooksSeconds),
		view.Number(b().Zcount().Key(k.Due).Min(lua.ParkedFrom).Max(lua.ParkedTo).Build(), &p.WaitForKey),
		view.Number(b().Zcard().Key(k.Seen).Build(), &p.windows))
}

// A due time from earliestSeconds to latestSeconds seems to be seconds: as milliseconds it is a time from 1970 to 1973,
// as seconds a time from 2001 to 5138.
const (
	earliestSeconds = "1e9"
	latestSeconds   = "1e11"
)

// settings asks for all settings in a hash.
func (r *reader) settings(key string, hash *map[string]string) view.Question {
	return view.Into(r.c.B().Hgetall().Key(key).Build(), hash, rueidis.RedisResult.AsStrMap)
}

// add adds the figures of another partition.
func (s *Sizes) add(other Sizes) {
	s.Held = s.Held || other.Held
	if s.Flow == (Flow{}) { // take the first partition that has one
		s.Flow = other.Flow
	}
	s.Scheduled += other.Scheduled
	s.Overdue += other.Overdue
	s.Behind = max(s.Behind, other.Behind)
	s.Stalled = max(s.Stalled, other.Stalled)
	if !other.NextDue.IsZero() && (s.NextDue.IsZero() || other.NextDue.Before(s.NextDue)) {
		s.NextDue = other.NextDue
	}
	s.Late = longest(s.Late, other.Late)
	s.WaitForKey += other.WaitForKey
	s.Turns += other.Turns
	s.LooksSeconds += other.LooksSeconds
	s.Ready += other.Ready
	s.ReadyApprox = s.ReadyApprox || other.ReadyApprox
	s.Entries += other.Entries
	s.Dead += other.Dead
	if other.NewestDead != nil && (s.NewestDead == nil || *other.NewestDead < *s.NewestDead) {
		s.NewestDead = other.NewestDead
	}
	for name, bytes := range other.Memory {
		if s.Memory == nil {
			s.Memory = map[string]int64{}
		}
		s.Memory[name] += bytes
	}
	s.windows += other.windows
}

// add adds the figures of the group in another partition.
func (g *GroupSizes) add(other *GroupSizes) {
	g.Lag += other.Lag
	g.LagApprox = g.LagApprox || other.LagApprox
	g.Waiting, g.Unread = longest(g.Waiting, other.Waiting), longest(g.Unread, other.Unread)
	g.WaitingApprox = g.WaitingApprox || other.WaitingApprox
	g.Pending += other.Pending
	if other.OldestEntry != nil && (g.OldestEntry == nil || comparePending(*other.OldestEntry, *g.OldestEntry) < 0) {
		g.OldestEntry = other.OldestEntry
	}
	g.OldestIdle = longest(g.OldestIdle, other.OldestIdle)
	if other.HeldLongest != nil && (g.HeldLongest == nil || other.HeldLongest.Held > g.HeldLongest.Held) {
		g.HeldLongest = other.HeldLongest
	}
	g.Usual = longest(g.Usual, other.Usual)
	g.Visibility = max(g.Visibility, other.Visibility)
	g.HandlerTimeout = max(g.HandlerTimeout, other.HandlerTimeout)
	for name, alive := range other.aliveByName {
		g.aliveByName[name] = g.aliveByName[name] || alive
	}
	g.manyConsumers = max(g.manyConsumers, other.manyConsumers)
	g.aliveApprox = g.aliveApprox || other.aliveApprox
	g.countConsumers()
	g.Retrying += other.Retrying
	g.RetryingApprox = g.RetryingApprox || other.RetryingApprox
	g.dead += other.dead
	g.deadApprox = g.deadApprox || other.deadApprox
}

// countConsumers sets Consumers and alive. Consumers that were too many to read all count as alive.
func (g *GroupSizes) countConsumers() {
	aliveNames := int64(0)
	for _, alive := range g.aliveByName {
		if alive {
			aliveNames++
		}
	}
	g.Consumers = max(g.manyConsumers, int64(len(g.aliveByName)))
	g.alive = max(g.manyConsumers, aliveNames)
}

// longest returns the longer of two durations; nil is shorter than any.
func longest(a, b *view.Millis) *view.Millis {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// QueueSizes are the sizes of a queue and of its groups, over all its partitions, as Stats or a Watcher have read them.
type QueueSizes struct {
	Queue      string
	Partitions int
	Sizes
	Groups     []GroupSizes
	MoreGroups int // groups without figures
}

// figures are the sizes of a partition and of its groups, or the sums of several partitions.
type figures struct {
	Sizes
	groups     []*GroupSizes // by name
	moreGroups int           // groups without figures
}

// group returns a group by name; nil if there is none.
func (f *figures) group(name string) *GroupSizes {
	if i, found := f.findGroup(name); found {
		return f.groups[i]
	}
	return nil
}

// findGroup returns the index of a group. If the group is not found, it belongs at this index.
func (f *figures) findGroup(name string) (i int, found bool) {
	return slices.BinarySearchFunc(f.groups, name, func(g *GroupSizes, name string) int {
		return strings.Compare(g.Name, name)
	})
}

// sum adds up partitions, except those that could not be read.
func sum(parts []*partition) (total figures) {
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		total.Sizes.add(p.Sizes)
		total.moreGroups = max(total.moreGroups, p.moreGroups)
		for _, g := range p.groups {
			i, found := total.findGroup(g.Name)
			if !found {
				total.groups = slices.Insert(total.groups, i, &GroupSizes{Name: g.Name, aliveByName: map[string]bool{}})
			}
			total.groups[i].add(g)
		}
	}
	return total
}
