package keeper

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Bounds of a sweep for orphans.
const (
	orphanConfirm    = time.Minute
	orphanSteps      = 20  // per pass and hash, or more to check all candidates
	orphanLimit      = 500 // candidates, and fields, per step
	orphanBytes      = 1 << 20
	orphanFreed      = 16 << 20                  // bytes of bodies that one call may delete, plus one body
	orphanCandidates = orphanSteps * orphanLimit // remembered per hash, plus those of one step
)

const deletedOrphans = "deleted bodies that never had a due time"

// orphanSweep searches one hash for orphans: fields without a member of the schedule. A producer leaves them if it dies
// between HSET and the command that schedules them (lua.EnqueueFresh, or a ZADD without MULTI). A live producer may be
// about to run that command. So the sweep deletes a field only if it sees it again a minute later, and has not seen it
// with a member, or with a body of another length, in between.
type orphanSweep struct {
	hash   string
	cursor string
	found  map[string]candidate
}

// candidate is a field that was an orphan at every look so far.
type candidate struct {
	length int64
	since  time.Time
}

func newOrphanSweep(hash string) orphanSweep {
	return orphanSweep{hash: hash, found: map[string]candidate{}}
}

// SweepOrphans makes one pass over payload and meta. It deletes fields that had no member of the schedule a minute ago
// and still have none, and searches for more. The next pass continues where this one ended. waiting is the number of
// fields that are not confirmed yet.
func (t *Trimmer) SweepOrphans(ctx context.Context) (deleted, waiting int, err error) {
	return t.sweepOrphans(ctx, time.Now())
}

func (t *Trimmer) sweepOrphans(ctx context.Context, now time.Time) (deleted, waiting int, err error) {
	for i := range t.orphans {
		n, err := t.orphans[i].pass(ctx, t.client, t.keys.Due, orphanLimit, now)
		deleted += n
		if err != nil {
			return deleted, waiting, fmt.Errorf("sweep orphans of %s: %w", t.queue, err)
		}
		waiting += len(t.orphans[i].found)
	}
	return deleted, waiting, nil
}

// pass checks every candidate, and drops those that are no longer orphans, however long they were on the list. limit is
// the number of further fields that one step examines, while the list has room.
func (o *orphanSweep) pass(ctx context.Context, c rueidis.Client, due string, limit int, now time.Time) (deleted int, err error) {
	batches := o.batches(now)
	for step := 0; step < orphanSteps || len(batches) > 0; step++ {
		var watched []lua.Watched
		if len(batches) > 0 {
			watched, batches = batches[0], batches[1:]
		}
		if o.full() {
			limit = 0 // search for no more until these are gone
		}
		if limit == 0 && len(watched) == 0 {
			break
		}
		swept, err := lua.SweepOrphans(ctx, c, due, o.hash, o.cursor, limit, watched)
		if err != nil {
			return deleted, err
		}
		deleted += swept.Deleted
		o.note(watched, swept, now)
		if o.cursor = swept.Cursor; o.cursor == "0" {
			limit = 0 // the walk is complete
		}
	}
	return deleted, nil
}

func (o *orphanSweep) full() bool { return len(o.found) >= orphanCandidates }

// since sets the time at which all candidates were found.
func (o *orphanSweep) since(now time.Time) {
	for field, one := range o.found {
		o.found[field] = candidate{one.length, now}
	}
}

// note updates the list of candidates.
func (o *orphanSweep) note(watched []lua.Watched, swept lua.Swept, now time.Time) {
	for i, w := range watched {
		if swept.Left[i] < 0 || w.Ripe {
			delete(o.found, w.Field)
		}
	}
	for _, found := range swept.Found {
		if _, known := o.found[found.Field]; !known {
			o.found[found.Field] = candidate{found.Length, now}
		}
	}
}

// batches returns all candidates in batches of one step, oldest first.
func (o *orphanSweep) batches(now time.Time) (batches [][]lua.Watched) {
	var all []lua.Watched
	for field, one := range o.found {
		all = append(all, lua.Watched{Orphan: lua.Orphan{Field: field, Length: one.length},
			Ripe: now.Sub(one.since) >= orphanConfirm})
	}
	slices.SortFunc(all, func(a, b lua.Watched) int {
		return cmp.Or(o.found[a.Field].since.Compare(o.found[b.Field].since), strings.Compare(a.Field, b.Field))
	})
	return watchBatches(all)
}

// watchBatches splits watched fields into calls bounded in number, in bytes, and in the memory that they free.
func watchBatches(all []lua.Watched) (batches [][]lua.Watched) {
	for len(all) > 0 {
		n, bytes, freed := 0, 0, int64(0)
		for n < len(all) && n < orphanLimit && bytes < orphanBytes && freed < orphanFreed {
			bytes += len(all[n].Field)
			if all[n].Ripe {
				freed += max(0, all[n].Length)
			}
			n++
		}
		batches, all = append(batches, all[:n]), all[n:]
	}
	return batches
}

// OrphanAge is how long a body must have had no member of the schedule before it is deleted.
const OrphanAge = orphanConfirm

// orphanLooks is how often DeleteOrphans checks whether a body has got a member before it deletes it.
const orphanLooks = 6

// DeleteOrphans deletes fields of a partition's payload and meta that have no member of the schedule now, nor at any
// check until age from now, because a producer may be about to add the member. It returns their number. A field that
// got a member, or another body, stays, even if it becomes an orphan again. It calls wait between the checks. One round
// trip per 500 fields and check.
func DeleteOrphans(ctx context.Context, c rueidis.Client, keys lua.Keys, payload, meta []string, age time.Duration,
	wait func(time.Duration) error) (deleted int, err error) {
	hashes, watched := []string{keys.Payload, keys.Meta}, make([][]lua.Watched, 2)
	for h, fields := range [][]string{payload, meta} {
		for _, field := range fields {
			watched[h] = append(watched[h], lua.Watched{Orphan: lua.Orphan{Field: field, Length: -1}})
		}
	}
	for look := range orphanLooks + 1 {
		if look > 0 {
			if err := wait(age / orphanLooks); err != nil {
				return 0, err
			}
		}
		for h, hash := range hashes {
			n := 0
			if watched[h], n, err = watchAgain(ctx, c, keys.Due, hash, watched[h], look == orphanLooks); err != nil {
				return deleted, fmt.Errorf("delete orphans of %s: %w", hash, err)
			}
			deleted += n
		}
	}
	return deleted, nil
}

// watchAgain returns the fields that are still the same orphans, with their present lengths. If ripe, it deletes them.
func watchAgain(ctx context.Context, c rueidis.Client, due, hash string, watched []lua.Watched,
	ripe bool) (left []lua.Watched, deleted int, err error) {
	for i := range watched {
		watched[i].Ripe = ripe
	}
	for _, batch := range watchBatches(watched) {
		swept, err := lua.SweepOrphans(ctx, c, due, hash, "", 0, batch)
		if err != nil {
			return nil, deleted, err
		}
		deleted += swept.Deleted
		for i, length := range swept.Left {
			if length >= 0 {
				left = append(left, lua.Watched{Orphan: lua.Orphan{Field: batch[i].Field, Length: length}})
			}
		}
	}
	return left, deleted, nil
}
