package inspect

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream"
)

// This file computes what tells a standstill from a queue that is merely busy: for how long nobody has drained, and nobody read.

// stalled returns for how long messages have been overdue while nothing became ready: a partition whose stream grows is drained,
// however late its messages are.
func (r *partitionReader) stalled(p *partition) view.Millis {
	last := time.Time{} // when an entry was added, as far as is known
	note := func(id view.EntryID) {
		if t := id.Time(); t.After(last) {
			last = t
		}
	}
	for _, g := range p.infos {
		note(g.Last)
	}
	for _, e := range p.newest {
		if id, err := view.ParseEntryID(e.ID); err == nil {
			note(id)
		}
	}
	return min(p.behind, view.Millis(max(0, r.now.Sub(last))))
}

// wait notes for how long entries have waited for the group, and for how long while none of its consumers read. lag is what waits
// for it, consumers are all that it has but the reclaimer's own.
func (g *groupFigures) wait(now time.Time, lag groupLag, consumers []view.Consumer) {
	if lag.entries == 0 || lag.since.IsZero() {
		return
	}
	waiting := view.Millis(max(0, now.Sub(lag.since)))
	unread := waiting
	for _, one := range consumers {
		unread = min(unread, view.Millis(one.Idle))
	}
	if g.manyConsumers > 0 { // too many for a Watcher to read
		unread = 0
	}
	g.waiting, g.unread = &waiting, &unread
}

// standing is what a Watcher remembers of a group for which entries wait.
type standing struct {
	last  view.EntryID // the last entry that it was given
	since time.Time    // of the first look that saw entries behind it
}

// waitingSince returns a time since when an entry waits for a group at least: that of the oldest of the newest entries which the
// group was not given yet, or of the first look that saw it stand where it stands. It asks nothing.
func (w *Watcher) waitingSince(p *partition, g view.GroupInfo, now time.Time) time.Time {
	since := now
	if s, seen := w.stood[p.name][g.Name]; seen && s.last == g.Last {
		since = s.since
	}
	p.standing[g.Name] = standing{g.Last, since}
	for _, e := range p.newest {
		if id, err := view.ParseEntryID(e.ID); err == nil && id.Compare(g.Last) > 0 && id.Time().Before(since) {
			since = id.Time()
		}
	}
	return since
}

// settings asks for all settings that a hash holds.
func (r *partitionReader) settings(key string, hash *map[string]string) view.Question {
	return view.Into(r.c.B().Hgetall().Key(key).Build(), hash, rueidis.RedisResult.AsStrMap)
}

// policyOf returns the policy of a group that a Watcher looks at.
func (p *partition) policyOf(group string, defaults map[string]string) stream.Policy {
	policies, _ := stream.ResolveAll([]string{group}, p.settings, defaults)
	return policies[group]
}

// newestLetter asks for the newest dead letter, if that is a fresh one. A Watcher asks when their number has grown.
func (r *partitionReader) newestLetter(p *partition) view.Question {
	from := strconv.FormatInt(r.now.Add(-FreshLetter).UnixMilli(), 10)
	return view.Entries(r.c.B().Xrevrange().Key(p.keys.Dead).End("+").Start(from).Count(1).Build(), &p.letters)
}

// letterCount is what a Watcher remembers of the dead letters of a partition.
type letterCount struct {
	count  int64
	newest time.Time // zero: it was not a fresh one
}

// takeLetter notes how old the newest dead letter is.
func (w *Watcher) takeLetter(p *partition, now time.Time) {
	seen := w.letters[p.name]
	if len(p.letters) > 0 {
		if id, err := view.ParseEntryID(p.letters[0].ID); err == nil {
			seen.newest = id.Time()
		}
	}
	seen.count = p.dead
	w.letters[p.name] = seen
	if age := view.Millis(max(0, now.Sub(seen.newest))); p.dead > 0 && age < view.Millis(FreshLetter) {
		p.letterAge = &age
	}
}

// ageOf returns how old an entry is; nil when its ID cannot be read.
func ageOf(e rueidis.XRangeSlice, now time.Time) *view.Millis {
	id, err := view.ParseEntryID(e.ID)
	if err != nil {
		return nil
	}
	age := view.Millis(max(0, id.Age(now)))
	return &age
}
