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
	orphanConfirm    = time.Minute               // a candidate is deleted if it is still an orphan after this time
	orphanSteps      = 20                        // per pass and hash; more if the candidates need more
	orphanLimit      = 500                       // per step: candidates checked, and fields searched
	orphanBytes      = 1 << 20                   // per step: bytes of the names of candidates
	orphanFreed      = 16 << 20                  // per step: bytes of bodies deleted, plus one body
	orphanCandidates = orphanSteps * orphanLimit // remembered per hash, plus the candidates of one step
)

const deletedOrphans = "deleted bodies that never had a due time"

// orphanSweep searches one hash for orphans: fields without a member of the schedule. A producer leaves an orphan if it
// dies between HSET and the command that schedules the message (lua.EnqueueFresh, or a ZADD without MULTI). A live
// producer may be about to run that command. So the sweep deletes a field only if the field is still an orphan a minute
// later, and no check in between found a member, or a body of another length.
type orphanSweep struct {
	hash       string
	cursor     string // of the search, as of HSCAN
	candidates map[string]candidate
}

// candidate is a field that was an orphan at every check so far.
type candidate struct {
	length int64     // of the body, in bytes
	since  time.Time // of the first check
}

func newOrphanSweep(hash string) orphanSweep {
	return orphanSweep{hash: hash, candidates: map[string]candidate{}}
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
		waiting += len(t.orphans[i].candidates)
	}
	return deleted, waiting, nil
}

// pass checks every candidate: it deletes orphans that are confirmed, and forgets candidates that are no orphans any
// more. In the same steps it searches for more orphans, while there is room for candidates. limit is the number of
// fields that a step searches; 0: none.
func (o *orphanSweep) pass(
	ctx context.Context, c rueidis.Client, due string, limit int, now time.Time,
) (deleted int, err error) {
	batches := o.batches(now)
	for step := 0; step < orphanSteps || len(batches) > 0; step++ {
		var watched []lua.Watched
		if len(batches) > 0 {
			watched, batches = batches[0], batches[1:]
		}
		if o.full() {
			limit = 0 // search for no more until candidates are gone
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
			limit = 0 // the search has reached the end of the hash
		}
	}
	return deleted, nil
}

func (o *orphanSweep) full() bool { return len(o.candidates) >= orphanCandidates }

// restartConfirmation sets now as the time of the first check of all candidates.
func (o *orphanSweep) restartConfirmation(now time.Time) {
	for field, one := range o.candidates {
		o.candidates[field] = candidate{one.length, now}
	}
}

// note forgets the watched candidates that were deleted or are no orphans any more, and adds the orphans that were
// found.
func (o *orphanSweep) note(watched []lua.Watched, swept lua.Swept, now time.Time) {
	for i, w := range watched {
		if swept.Left[i] < 0 || w.Ripe {
			delete(o.candidates, w.Field)
		}
	}
	for _, found := range swept.Found {
		if _, known := o.candidates[found.Field]; !known {
			o.candidates[found.Field] = candidate{found.Length, now}
		}
	}
}

// batches returns all candidates in batches of one step, oldest first.
func (o *orphanSweep) batches(now time.Time) (batches [][]lua.Watched) {
	var all []lua.Watched
	for field, one := range o.candidates {
		all = append(all, lua.Watched{Orphan: lua.Orphan{Field: field, Length: one.length},
			Ripe: now.Sub(one.since) >= orphanConfirm})
	}
	slices.SortFunc(all, func(a, b lua.Watched) int {
		return cmp.Or(
			o.candidates[a.Field].since.Compare(o.candidates[b.Field].since),
			strings.Compare(a.Field, b.Field),
		)
	})
	return watchBatches(all)
}

// watchBatches splits watched fields into batches for one call each. A batch is bounded in the number of fields, in the
// bytes of their names, and in the bytes of bodies that it deletes.
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

// orphanChecks is how often DeleteOrphans checks whether a body is still an orphan before it deletes the body.
const orphanChecks = 6

// DeleteOrphans deletes those of the given fields of a partition's payload and meta that have no member of the schedule
// now, nor at any check until age from now. It waits so long because a producer may be about to add the member. It
// returns the number of deleted fields. A field that gets a member or another body before the last check stays, even if
// it becomes an orphan again. DeleteOrphans calls wait between the checks. It takes one round trip per 500 fields and
// check.
func DeleteOrphans(
	ctx context.Context, c rueidis.Client, keys lua.Keys, payload, meta []string, age time.Duration,
	wait func(time.Duration) error,
) (deleted int, err error) {
	const unknownLength = -1
	hashes, watched := []string{keys.Payload, keys.Meta}, make([][]lua.Watched, 2)
	for h, fields := range [][]string{payload, meta} {
		for _, field := range fields {
			watched[h] = append(watched[h], lua.Watched{Orphan: lua.Orphan{Field: field, Length: unknownLength}})
		}
	}
	for check := range orphanChecks + 1 {
		if check > 0 {
			if err := wait(age / orphanChecks); err != nil {
				return 0, err
			}
		}
		isLast := check == orphanChecks
		for h, hash := range hashes {
			n := 0
			if watched[h], n, err = checkOrphans(ctx, c, keys.Due, hash, watched[h], isLast); err != nil {
				return deleted, fmt.Errorf("delete orphans of %s: %w", hash, err)
			}
			deleted += n
		}
	}
	return deleted, nil
}

// checkOrphans returns the fields that are still the same orphans, with their present lengths. If remove is true, it
// deletes these fields.
func checkOrphans(
	ctx context.Context, c rueidis.Client, due, hash string, watched []lua.Watched, remove bool,
) (left []lua.Watched, deleted int, err error) {
	for i := range watched {
		watched[i].Ripe = remove
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
