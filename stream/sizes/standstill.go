package sizes

import (
	"time"

	"github.com/duestream/duestream/internal/view"
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
	g.Waiting, g.Unread = &waiting, &unread
}

// backlogSeen tells when a Watcher first saw the present backlog of a group.
type backlogSeen struct {
	last  view.EntryID // the last entry delivered to the group
	since time.Time    // time of the first look that saw entries after last
}

// noteBacklogs sets, for each group with a backlog, the time since which an entry has waited. The time is the earlier
// of two: the first look that saw the group at its present position, and the oldest entry after that position among the
// newest entries. It sends no command.
func (r *reader) noteBacklogs(p *partition, lags []groupLag) {
	cache := r.cacheOf(p)
	seenBefore := cache.backlogs
	cache.backlogs = map[string]backlogSeen{}
	for i, g := range p.infos {
		if lags[i].entries == 0 {
			continue
		}
		since := r.now
		if backlog, seen := seenBefore[g.Name]; seen && backlog.last == g.Last {
			since = backlog.since
		}
		cache.backlogs[g.Name] = backlogSeen{g.Last, since}
		for _, one := range p.glanced.Newest {
			if id, err := view.ParseEntryID(one.ID); err == nil && id.Compare(g.Last) > 0 && id.Time().Before(since) {
				since = id.Time()
			}
		}
		lags[i].since = since
	}
}
