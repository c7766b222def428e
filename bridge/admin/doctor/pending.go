package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// sweepCount is how many entries unneeded checks, from the oldest pending entry on.
const sweepCount = 20

// pending checks all pending entries of a group.
func (l *look) pending(p place, g view.GroupInfo, visibility time.Duration) {
	length := l.number(l.c.B().Xlen().Key(p.keys.Stream).Build())
	page := int(min(scriptItems, l.pageOf(p.keys.Stream, max(1, length))))
	way := &progress{look: l, step: "pending of " + p.name(), key: p.keys.Stream + ", group " + shown(g.Name),
		all: g.Pending, one: "pending entry", many: "pending entries"}
	tooLong := abandonedAfter(visibility)
	var abandoned, bodiless defects
	var oldest *view.Pending
	for from := "-"; ; {
		list := l.pendingFrom(p, g.Name, from, page)
		var ids []string
		for _, one := range list {
			ids = append(ids, one.ID.String())
			if one.Idle > tooLong {
				abandoned.add(one.ID.String())
			}
		}
		// Age alone is no defect, because the entry may have been delivered late. The defect is that the oldest pending
		// entry is far older than the last entry that the group has read.
		if from == "-" && len(list) > 0 && list[0].Idle <= tooLong &&
			g.Last.Age(l.now)+max(longWait, tooLong) < list[0].ID.Age(l.now) {
			oldest = &list[0]
		}
		if len(list) > 0 {
			bodiless.add(l.lostEntries(p, g.Name, ids)...)
			l.denied("pending entries that were deleted")
		}
		if !way.more(len(list)) || len(list) < page {
			break
		}
		from = "(" + list[len(list)-1].ID.String()
	}
	if l.err != nil {
		return
	}
	// For one visibility timeout after the start of a bridge or of the server, the bridge reclaims nothing.
	if uptime := l.now.Sub(l.lastStart); abandoned.count > 0 && uptime < visibility+2*l.Settle {
		l.leftOut("%s, group %s: %s without a sign of life, but the server or the bridges run for %s only, "+
			"and wait for %s before they take such back",
			p.keys.Stream, shown(g.Name), plural(abandoned.count, "entry", "entries"), uptime.Round(time.Second), visibility)
	} else {
		l.abandoned(p, g.Name, &abandoned, tooLong)
	}
	l.bodiless(p, g.Name, &bodiless)
	if oldest != nil {
		l.oldPending(p, g.Name, oldest.ID, tooLong)
	}
}

// heldLook is how many of the oldest pending entries of a group hung checks.
const heldLook = 100

// hung checks for entries whose consumers extend them for too long.
func (l *look) hung(p place, group string, rules policy.Policy) {
	visibility := rules.VisibilityTimeout
	l.probeEachTwice(func(l *look) *Finding {
		now, text := l.serverTime(), l.text(l.c.B().Hget().Key(p.keys.Calm).Field(lua.HeldField(group)).Build())
		l.denied("since when deliveries are held")
		notes := lua.ParseHeldNotes(text)
		var usual *time.Duration
		if notes.Usual >= 0 {
			usual = &notes.Usual
		}
		tooLong, longest := heldTooLong(visibility, rules.HandlerTimeout, usual), time.Duration(0)
		var ids []string
		holder := ""
		for _, one := range l.pendingFrom(p, group, "-", heldLook) {
			held := now.Sub(one.Since(notes, now))
			if held <= tooLong || one.Idle > abandonedAfter(visibility) || one.Consumer == lua.ReclaimConsumer {
				continue
			}
			ids = append(ids, one.ID.String())
			if held > longest {
				longest, holder = held, one.Consumer
			}
		}
		if len(ids) == 0 {
			return nil
		}
		count := int64(len(ids))
		found := heldFound(count, longest, holder, usual)
		return l.finding(heldLong, p, p.keys.Stream, group, count, found, ids[:min(examples, len(ids))]...)
	})
}

// oldPending checks again an entry that is far older than the last entry that its group has read.
func (l *look) oldPending(p place, group string, id view.EntryID, tooLong time.Duration) {
	l.probeFor(max(l.Settle, l.FreeWithin), func(l *look) *Finding {
		list := l.pendingFrom(p, group, id.String(), 1)
		if len(list) == 0 || list[0].ID != id || list[0].Idle > tooLong {
			return nil
		}
		found := fmt.Sprintf("%s is pending with %s, and was added %s ago", id, shown(list[0].Consumer),
			id.Age(l.now).Round(time.Minute))
		return l.finding(oldPending, p, p.keys.Stream, group, 1, found, id.String())
	})
}

// abandoned checks again the entries that were idle for too long.
func (l *look) abandoned(p place, group string, d *defects, tooLong time.Duration) {
	still := func(l *look, ids []string) (left, texts []string) {
		for i, id := range ids {
			// Bridges reclaim the oldest entries first. So if an old entry is still there, the newer ones are, too.
			if i >= 2*examples && len(left) > 0 {
				return append(left, ids[i:]...), texts
			}
			list := l.pendingFrom(p, group, id, 1)
			if len(list) > 0 && list[0].ID.String() == id && list[0].Idle > tooLong {
				left = append(left, id)
				texts = append(texts, fmt.Sprintf("%s with %s for %s", id, shown(list[0].Consumer),
					list[0].Idle.Round(time.Second)))
			}
		}
		return left, texts
	}
	long := fmt.Sprintf(" without a sign of life for %s and more", tooLong)
	l.confirm(notReclaimed, p, p.keys.Stream, group, d, "entry is pending"+long, "entries are pending"+long, still)
}

// bodiless checks again the pending entries that are not in the stream.
func (l *look) bodiless(p place, group string, d *defects) {
	l.confirm(lostBody, p, p.keys.Stream, group, d, "entry is pending and not in the stream",
		"entries are pending and not in the stream", func(l *look, ids []string) (left, texts []string) {
			left = l.lostEntries(p, group, ids)
			return left, left
		})
}

// lostEntries returns those of the pending entries that are not in the stream.
func (l *look) lostEntries(p place, group string, ids []string) []string {
	return ask(l, func(ctx context.Context) ([]string, error) {
		return lua.LostEntries(ctx, l.c, p.keys.Stream, group, ids)
	})
}

// pendingFrom returns at most count pending entries of a group, from an ID on.
func (l *look) pendingFrom(p place, group, from string, count int) (list []view.Pending) {
	l.read(view.PendingOf(l.c, p.keys.Stream, group, view.PendingRange{From: from, Count: count}, &list))
	return list
}

// unfreed checks for entries that no group needs any more.
func (l *look) unfreed(p place) {
	var first []string
	l.probeFor(max(l.Settle, l.FreeWithin), func(l *look) *Finding {
		ids := l.unneeded(p)
		if first != nil {
			ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(first, id) })
		}
		first = ids
		return l.listed(notFreed, p, p.keys.Stream, "", ids, "entry at least that no group needs",
			"entries at least that no group needs").mendedBy(l.trim(p))
	})
}

// unneeded returns entries that every group has read and no group holds: the first entry of the stream, and some
// entries after the oldest pending one. It reads how far the groups have come before it reads the entries. Groups only
// advance, so an entry that no group needed at that time is not needed later.
func (l *look) unneeded(p place) (unneeded []string) {
	groups := l.stream(p.keys.Stream).Groups
	if len(groups) == 0 {
		return nil
	}
	bound, delivered := l.bounds(p, groups)
	length := l.number(l.c.B().Xlen().Key(p.keys.Stream).Build())
	if length == 0 {
		return nil
	}
	sweep := min(sweepCount, l.pageOf(p.keys.Stream, length))
	var head, later []rueidis.XRangeSlice
	between := l.c.B().Xrange().Key(p.keys.Stream).Start(bound.String()).End(delivered.String()).Count(sweep).Build()
	l.read(view.Entries(l.c.B().Xrange().Key(p.keys.Stream).Start("-").End("+").Count(1).Build(), &head),
		view.Entries(between, &later))
	if len(head) > 0 && entryID(head[0].ID).Compare(bound) < 0 {
		unneeded = append(unneeded, head[0].ID)
	}
	needed := map[string]bool{}
	for _, g := range groups {
		if len(later) == 0 || g.Pending == 0 {
			continue
		}
		list := l.pendingFrom(p, g.Name, bound.String(), pageItems)
		for _, one := range list {
			needed[one.ID.String()] = true
		}
		if len(list) == pageItems { // the group may hold further entries after these
			last := list[len(list)-1].ID
			later = slices.DeleteFunc(later, func(one rueidis.XRangeSlice) bool { return entryID(one.ID).Compare(last) > 0 })
		}
	}
	for _, one := range later {
		if !needed[one.ID] {
			unneeded = append(unneeded, one.ID)
		}
	}
	return unneeded
}

// bounds returns the first entry that is pending or unread in any group, and the last entry that all groups read.
func (l *look) bounds(p place, groups []view.GroupInfo) (bound, delivered view.EntryID) {
	for i, g := range groups {
		oldest := g.Last.Next() // oldest entry that is pending or unread in the group
		if g.Pending > 0 {
			if list := l.pendingFrom(p, g.Name, "-", 1); len(list) > 0 && list[0].ID.Compare(oldest) < 0 {
				oldest = list[0].ID
			}
		}
		if i == 0 || oldest.Compare(bound) < 0 {
			bound = oldest
		}
		if i == 0 || g.Last.Compare(delivered) < 0 {
			delivered = g.Last
		}
	}
	return bound, delivered
}
