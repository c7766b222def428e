package keeper

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// OrphanAge is how long a body must have been without a member of the schedule before it is deleted.
const OrphanAge = orphanConfirm

// orphanLooks is how often DeleteOrphans looks whether a body has got a member, before it deletes it.
const orphanLooks = 6

// DeleteOrphans deletes those of the given fields of a partition's payload and meta that are without a member of the schedule now, and whenever
// it looks until age from now, and says how many: a producer may be about to add the member. A field that has got one, or another body, stays, though
// it may be an orphan again by then. Wait is called between the looks. One round trip per 500 fields and look.
func DeleteOrphans(ctx context.Context, c rueidis.Client, keys lua.Keys, payload, meta []string, age time.Duration, wait func(time.Duration) error) (deleted int, err error) {
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

// watchAgain returns those that still are the orphans they were, as they are now. If they are ripe they are deleted.
func watchAgain(ctx context.Context, c rueidis.Client, due, hash string, watched []lua.Watched, ripe bool) (left []lua.Watched, deleted int, err error) {
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

// Trim frees, in one partition of a queue (its name is that of lua.PartitionName), what no group needs, and ended dedup windows.
func Trim(ctx context.Context, c rueidis.Client, prefix, name string) (freed, windows int, err error) {
	t := NewTrimmer(c, prefix, name)
	for {
		done, err := t.Trim(ctx)
		freed, windows = freed+done.Freed, windows+done.Windows
		if err != nil || !done.More {
			return freed, windows, err
		}
	}
}
