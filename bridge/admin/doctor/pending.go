package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// sweepCount is how many entries behind a pending one are looked at.
const sweepCount = 20

// pending goes through everything that a group holds.
func (e *examination) pending(ctx context.Context, p place, g view.GroupInfo, visibility time.Duration) error {
	length, err := e.number(ctx, e.c.B().Xlen().Key(p.keys.Stream).Build())
	if err != nil {
		return err
	}
	page, looked := int(min(scriptItems, e.pageOf(ctx, p.keys.Stream, max(1, length)))), int64(0)
	tooLong := 3*visibility + reclaimSlack
	var abandoned, bodiless defects
	var oldest *view.Pending
	for from := "-"; ; {
		list, err := e.pendingFrom(ctx, p, g.Name, from, page)
		if err != nil {
			return err
		}
		var ids []string
		for _, one := range list {
			ids = append(ids, one.ID.String())
			if one.Idle > tooLong {
				abandoned.add(one.ID.String())
			}
		}
		// What was delivered late is old as well: so much later was given to the group since.
		if from == "-" && len(list) > 0 && list[0].Idle <= tooLong &&
			g.Last.Age(e.now)+max(longWait, tooLong) < list[0].ID.Age(e.now) {
			oldest = &list[0]
		}
		if len(list) > 0 {
			gone, err := e.lostEntries(ctx, p, g.Name, ids)
			if err != nil && !e.denied(err, "pending entries that were deleted") {
				return err
			}
			for _, id := range gone {
				bodiless.add(id)
			}
		}
		looked += int64(len(list))
		e.Progress("pending of "+lua.PartitionName(p.queue, p.partition), int(min(looked, g.Pending)), int(g.Pending))
		if len(list) < page {
			break
		}
		if e.Quick && looked >= quickItems {
			e.leftOut("%s, group %s: looked at %d of %s (without --quick: all)", p.keys.Stream, shown(g.Name), looked,
				plural(g.Pending, "pending entry", "pending entries"))
			break
		}
		from = "(" + list[len(list)-1].ID.String()
	}
	// Bridges do not reclaim for one visibility timeout after a start, theirs or the server's.
	if calm := e.now.Sub(e.calm); abandoned.count > 0 && calm < visibility+2*e.Settle {
		e.leftOut("%s, group %s: %s without a sign of life, but the server or the bridges run for %s only, "+
			"and wait for %s before they take such back",
			p.keys.Stream, shown(g.Name), plural(abandoned.count, "entry", "entries"), calm.Round(time.Second), visibility)
	} else if err := e.abandoned(ctx, p, g.Name, &abandoned, tooLong); err != nil {
		return err
	}
	if err := e.bodiless(ctx, p, g.Name, &bodiless); err != nil {
		return err
	}
	if oldest == nil {
		return nil
	}
	return e.patiently(ctx, max(e.Settle, e.FreeWithin), func(ctx context.Context) (*Finding, error) {
		list, err := e.pendingFrom(ctx, p, g.Name, oldest.ID.String(), 1)
		if err != nil || len(list) == 0 || list[0].ID != oldest.ID || list[0].Idle > tooLong {
			return nil, err
		}
		found := fmt.Sprintf("%s is pending with %s, and was added %s ago", oldest.ID, shown(list[0].Consumer),
			oldest.ID.Age(e.now).Round(time.Minute))
		return e.finding(oldPending, p, p.keys.Stream, g.Name, 1, found, oldest.ID.String()), nil
	})
}

// abandoned looks again at entries without a sign of life.
func (e *examination) abandoned(ctx context.Context, p place, group string, d *defects, tooLong time.Duration) error {
	return e.confirm(ctx, notReclaimed, p, p.keys.Stream, d, func(n int64) string {
		return fmt.Sprintf("%s without a sign of life for %s and more", plural(n, "entry is pending", "entries are pending"),
			tooLong)
	}, func(ctx context.Context, ids []string) (left, texts []string, err error) {
		for i, id := range ids {
			if i >= 2*examples && len(left) > 0 { // some are enough: they are taken back from the oldest on
				return append(left, ids[i:]...), texts, nil
			}
			list, err := e.pendingFrom(ctx, p, group, id, 1)
			if err != nil {
				return nil, nil, err
			}
			if len(list) > 0 && list[0].ID.String() == id && list[0].Idle > tooLong {
				left = append(left, id)
				texts = append(texts, fmt.Sprintf("%s with %s for %s", id, shown(list[0].Consumer),
					list[0].Idle.Round(time.Second)))
			}
		}
		return left, texts, nil
	}, group)
}

// bodiless looks again at pending entries that are not in the stream.
func (e *examination) bodiless(ctx context.Context, p place, group string, d *defects) error {
	return e.confirm(ctx, lostBody, p, p.keys.Stream, d, func(n int64) string {
		return plural(n, "entry is", "entries are") + " pending and not in the stream"
	}, func(ctx context.Context, ids []string) (left, texts []string, err error) {
		left, err = e.lostEntries(ctx, p, group, ids)
		return left, left, err
	}, group)
}

func (e *examination) lostEntries(ctx context.Context, p place, group string, ids []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return lua.LostEntries(ctx, e.c, p.keys.Stream, group, ids)
}

// pendingFrom returns what a group holds, from an entry on.
func (e *examination) pendingFrom(ctx context.Context, p place, group, from string, count int) ([]view.Pending, error) {
	return view.ReadPending(ctx, e.c, p.keys.Stream, group, view.PendingRange{From: from, Count: count})
}

// unfreed looks for entries that no group needs.
func (e *examination) unfreed(ctx context.Context, p place) error {
	var first []string
	return e.patiently(ctx, max(e.Settle, e.FreeWithin), func(ctx context.Context) (*Finding, error) {
		ids, err := e.unneeded(ctx, p)
		if err != nil {
			return nil, err
		}
		if first != nil {
			ids = slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(first, id) })
		}
		if first = ids; len(ids) == 0 {
			return nil, nil
		}
		f := e.finding(notFreed, p, p.keys.Stream, "", int64(len(ids)),
			plural(int64(len(ids)), "entry", "entries")+" at least that no group needs", ids...)
		f.mend = e.trim(p)
		return f, nil
	})
}

// unneeded returns entries that every group was given and none holds: the first of the stream, and some behind the oldest pending
// one. What groups are given and hold only moves on, and is read before the entries.
func (e *examination) unneeded(ctx context.Context, p place) ([]string, error) {
	entries, err := view.ReadStream(ctx, e.c, p.keys.Stream)
	if err != nil || len(entries.Groups) == 0 {
		return nil, err
	}
	var bound, delivered view.EntryID
	for i, g := range entries.Groups {
		own := g.Last.Next()
		if g.Pending > 0 {
			list, err := e.pendingFrom(ctx, p, g.Name, "-", 1)
			if errors.Is(err, lua.ErrNoGroup) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if len(list) > 0 && list[0].ID.Compare(own) < 0 {
				own = list[0].ID
			}
		}
		if i == 0 || own.Compare(bound) < 0 {
			bound = own
		}
		if i == 0 || g.Last.Compare(delivered) < 0 {
			delivered = g.Last
		}
	}
	length, err := e.number(ctx, e.c.B().Xlen().Key(p.keys.Stream).Build())
	if err != nil || length == 0 {
		return nil, err
	}
	b, sweep := e.c.B, min(sweepCount, e.pageOf(ctx, p.keys.Stream, length))
	replies, err := e.do(ctx, b().Xrange().Key(p.keys.Stream).Start("-").End("+").Count(1).Build(),
		b().Xrange().Key(p.keys.Stream).Start(bound.String()).End(delivered.String()).Count(sweep).Build())
	if err != nil {
		return nil, err
	}
	var unneeded []string
	head, err := replies[0].AsXRange()
	if err != nil {
		return nil, err
	}
	if len(head) > 0 && entryID(head[0].ID).Compare(bound) < 0 {
		unneeded = append(unneeded, head[0].ID)
	}
	behind, err := replies[1].AsXRange()
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, g := range entries.Groups {
		if len(behind) == 0 || g.Pending == 0 {
			continue
		}
		list, err := e.pendingFrom(ctx, p, g.Name, bound.String(), pageItems)
		if err != nil {
			return nil, err
		}
		for _, one := range list {
			needed[one.ID.String()] = true
		}
		if len(list) == pageItems { // what is beyond is not known
			last := list[len(list)-1].ID
			behind = slices.DeleteFunc(behind, func(one rueidis.XRangeEntry) bool { return entryID(one.ID).Compare(last) > 0 })
		}
	}
	for _, one := range behind {
		if !needed[one.ID] {
			unneeded = append(unneeded, one.ID)
		}
	}
	return unneeded, nil
}
