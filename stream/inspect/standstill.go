package inspect

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream"
)

// This file measures how long nothing was drained and nothing was read. That tells a standstill from a busy queue.

// stalled returns how long messages have been overdue while nothing became ready. A partition whose stream grows is
// being drained, however late its messages are.
func (r *partitionReader) stalled(p *partition) view.Millis {
	last := time.Time{} // when the last known entry was added
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

// wait notes how long entries have waited for the group, and how long no consumer read meanwhile. lag is the group's
// backlog; consumers are all its consumers except the reclaimer.
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

// standing is a Watcher's memory of a group with a backlog.
type standing struct {
	last  view.EntryID // last entry delivered to the group
	since time.Time    // of the first look that saw entries after it
}

// waitingSince returns a time since which an entry has waited for a group, at least. It is the time of the oldest of
// the newest entries that the group was not given, or of the first look that saw the group at its present position. It
// sends no command.
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

// settings asks for all settings in a hash.
func (r *partitionReader) settings(key string, hash *map[string]string) view.Question {
	return view.Into(r.c.B().Hgetall().Key(key).Build(), hash, rueidis.RedisResult.AsStrMap)
}

// policyOf returns the policy of a group, for a Watcher.
func (p *partition) policyOf(group string, defaults map[string]string) stream.Policy {
	policies, _ := stream.ResolveAll([]string{group}, p.settings, defaults)
	return policies[group]
}

// newestLetter asks for the newest dead letter, if it is a fresh one. A Watcher asks when their number has grown.
func (r *partitionReader) newestLetter(p *partition) view.Question {
	from := strconv.FormatInt(r.now.Add(-FreshLetter).UnixMilli(), 10)
	return view.Entries(r.c.B().Xrevrange().Key(p.keys.Dead).End("+").Start(from).Count(1).Build(), &p.letters)
}

// letterCount is a Watcher's memory of a partition's dead letters.
type letterCount struct {
	count  int64
	newest time.Time // zero: it was not fresh
}

// takeLetter notes the age of the newest dead letter.
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

// ageOf returns the age of an entry; nil if its ID is malformed.
func ageOf(e rueidis.XRangeSlice, now time.Time) *view.Millis {
	id, err := view.ParseEntryID(e.ID)
	if err != nil {
		return nil
	}
	age := view.Millis(max(0, id.Age(now)))
	return &age
}
