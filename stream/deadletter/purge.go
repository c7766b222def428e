package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream"
)

// Bounds of one call that purges.
const (
	purgeLetters = 500
	purgeTrim    = 10_000
)

// Purge deletes letters by name, and returns how many existed. One round trip per partition and 500 letters.
func (d *DeadLetters) Purge(ctx context.Context, queue string, letters []string) (purged int, err error) {
	byPartition, err := splitLetters(letters)
	if err = errors.Join(d.check(queue), err); err != nil {
		return 0, fmt.Errorf("purge dead letters of %s: %w", queue, err)
	}
	for _, partition := range slices.Sorted(maps.Keys(byPartition)) {
		key := d.keys(queue, partition).Dead
		for batch := range slices.Chunk(byPartition[partition], purgeLetters) {
			n, err := d.deleted(ctx, d.client.B().Xdel().Key(key).Id(batch...).Build())
			d.told(queue, observe.Purged, n)
			purged += n
			if err != nil {
				return purged, fmt.Errorf("purge dead letters of %s: %w", queue, err)
			}
		}
	}
	return purged, nil
}

// deleted runs a command that replies with the number of deletions. It runs none if ctx has ended. If ctx ends during
// the command, it waits for the reply.
func (d *DeadLetters) deleted(ctx context.Context, command rueidis.Completed) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	var n int64
	err := view.AskLong(context.WithoutCancel(ctx), d.client, view.Number(command, &n))
	return int(n), err
}

// PurgeProgress deletes all letters that pass the filter, and returns their number. After each call to the server it
// passes the number so far to progress. Letters added meanwhile stay. A filter by OlderThan alone reads nothing; any
// other reads all letters. If ctx ends, the current call is finished first, so that the count is right.
func (d *DeadLetters) PurgeProgress(ctx context.Context, queue string, f Filter, progress func(purged int)) (int, error) {
	age := Filter{OlderThan: f.OlderThan, Newest: f.Newest}
	if f == age && f.validate() == nil {
		return d.purgeOld(ctx, queue, f, progress)
	}
	purged := 0
	var batch []string
	for letter, err := range d.List(ctx, queue, f) {
		if err != nil {
			return purged, err
		}
		batch = append(batch, letter.Letter)
		if len(batch) == purgeLetters {
			n, err := d.Purge(ctx, queue, batch)
			purged += n
			if err != nil {
				return purged, err
			}
			progress(purged)
			batch = batch[:0]
		}
	}
	n, err := d.Purge(ctx, queue, batch)
	return purged + n, err
}

// purgeOld deletes the oldest letters of all partitions: whole nodes of a stream in bounded steps, then the rest of one node.
func (d *DeadLetters) purgeOld(ctx context.Context, queue string, f Filter, progress func(purged int)) (purged int, err error) {
	counts, err := stream.Partitions(ctx, d.client, d.prefix, queue)
	if err == nil {
		for i := range counts.Latest() {
			n, failed := d.purgeHead(ctx, d.keys(queue, i).Dead, f, func(n int) { progress(purged + n) })
			d.told(queue, observe.Purged, n)
			purged, err = purged+n, errors.Join(err, failed)
		}
	}
	if err != nil {
		return purged, fmt.Errorf("purge dead letters of %s: %w", queue, err)
	}
	return purged, nil
}

func (d *DeadLetters) purgeHead(ctx context.Context, key string, f Filter, progress func(purged int)) (purged int, err error) {
	_, to, err := d.bounds(ctx, key, f)
	if err != nil || to == "" {
		return 0, err
	}
	threshold, err := nextEntryID(to)
	if err != nil {
		return 0, err
	}
	for exact := false; ; {
		trim := d.client.B().Xtrim().Key(key).Minid().Almost().Threshold(threshold).Limit(purgeTrim).Build()
		if exact {
			trim = d.client.B().Xtrim().Key(key).Minid().Threshold(threshold).Build()
		}
		n, err := d.deleted(ctx, trim)
		if err != nil {
			return purged, err
		}
		purged += n
		progress(purged)
		if exact {
			return purged, nil
		}
		exact = n == 0
	}
}

// nextEntryID returns the lowest ID above id; if id is only a millisecond, above all entries of that millisecond.
func nextEntryID(id string) (string, error) {
	at, err := view.ParseEntryID(id)
	if err != nil {
		return "", err
	}
	if id != at.String() || at.Seq == math.MaxUint64 {
		return view.EntryID{MS: at.MS + 1}.String(), nil
	}
	return view.EntryID{MS: at.MS, Seq: at.Seq + 1}.String(), nil
}
