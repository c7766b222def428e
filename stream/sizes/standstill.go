package sizes

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// This file measures for how long no message was drained and no entry was read. The two times tell a queue that stands
// still from a busy one.

// stalled returns how long messages have been overdue while nothing became ready. A partition whose stream grows is
// being drained, however late its messages are.
func (r *reader) stalled(p *partition) view.Millis {
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
	for _, e := range p.glanced.Newest {
		if id, err := view.ParseEntryID(e.ID); err == nil {
			note(id)
		}
	}
	return min(p.Behind, view.Millis(max(0, r.now.Sub(last))))
}

// noteWaiting sets Waiting and Unread. lag is the group's backlog; consumers are all its consumers except the
// reclaimer.
func (g *GroupSizes) noteWaiting(now time.Time, lag groupLag, consumers []view.Consumer) {
	if lag.entries == 0 || lag.since.IsZero() {
		return
	}
	waiting := view.Millis(max(0, now.Sub(lag.since)))
	unread := waiting
	for _, one := range consumers {
		unread = min(unread, view.Millis(one.Idle))
	}
	if g.manyConsumers > 0 { // the consumers were not read, because there are too many: assume that one reads
		unread = 0
	}
	g.Waiting, g.WaitingApprox, g.Unread = &waiting, lag.later, &unread
}

// backlogSeen holds the time since which the present backlog of a group has waited.
type backlogSeen struct {
	last  view.EntryID // the last entry delivered to the group
	since time.Time    // when the oldest entry of the backlog was added, or later
	exact bool         // since is the time of the oldest entry
}

// Bounds of the entries that one glance reads for the ages of backlogs.
const (
	oldestAsks  = 16
	oldestBytes = 1 << 20
)

// noteBacklogs sets, for each group with a backlog, the time since which its oldest entry has waited. It takes the time
// from the newest entries if they reach back to the position of the group. Otherwise it reads the oldest entry, once
// for each position. A glance reads only a few oldest entries, so groups take turns. Until its turn, a group has a
// later time: that of the oldest entry seen, or of the first look at this position.
func (r *reader) noteBacklogs(ctx context.Context, p *partition, lags []groupLag) {
	cache := r.cacheOf(p)
	seenBefore := cache.backlogs
	cache.backlogs = map[string]backlogSeen{}
	size := max(cache.entrySize, 1)
	oldest := make([][]rueidis.XRangeSlice, len(p.infos))
	var questions [][]view.Question
	for i, g := range p.infos {
		if lags[i].entries == 0 {
			continue
		}
		one := backlogSeen{last: g.Last, since: r.now}
		if before, seen := seenBefore[g.Name]; seen && before.last == g.Last {
			one = before
		}
		if !one.exact {
			one.noteNewest(p.glanced.Newest, p.Entries)
		}
		if !one.exact && r.oldestAsks > 0 && r.oldestBytes >= size {
			r.oldestAsks--
			r.oldestBytes -= size
			next := r.c.B().Xrange().Key(p.keys.Stream).Start("(" + g.Last.String()).End("+").Count(1).Build()
			questions = append(questions, []view.Question{view.Entries(next, &oldest[i])})
		}
		cache.backlogs[g.Name] = one
	}
	if len(questions) > 0 {
		call, cancel := context.WithTimeout(ctx, glanceTimeout)
		_ = view.AskEach(call, r.c, questions...) // a time that cannot be read stays a later one
		cancel()
	}
	for i, g := range p.infos {
		one, known := cache.backlogs[g.Name]
		if !known {
			continue
		}
		if len(oldest[i]) > 0 {
			one.since, one.exact = lua.EntryTime(oldest[i][0].ID), true
			cache.backlogs[g.Name] = one
		}
		lags[i].since, lags[i].later = one.since, !one.exact
	}
}

// noteNewest takes over the time of the oldest entry of the backlog among the newest entries of a stream.
func (b *backlogSeen) noteNewest(newest []lua.GlancedEntry, entries int64) {
	b.exact = len(newest) > 0 && int64(len(newest)) == entries // the whole stream
	for _, one := range newest {
		id, err := view.ParseEntryID(one.ID)
		switch {
		case err != nil:
		case id.Compare(b.last) <= 0: // the backlog begins after it
			b.exact = true
		case id.Time().Before(b.since):
			b.since = id.Time()
		}
	}
}
