package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of one call that purges.
const (
	purgeLetters = 500    // letters that are deleted by name
	purgeTrim    = 10_000 // letters that are deleted by age
)

// Purge deletes letters by name, and returns how many existed. It takes one round trip for every 500 letters of each
// partition.
func (d *DeadLetters) Purge(ctx context.Context, queue string, letters []string) (purged int, err error) {
	byPartition, err := splitLetters(letters)
	if err = errors.Join(d.check(queue), err); err != nil {
		return 0, fmt.Errorf("purge dead letters of %s: %w", queue, err)
	}
	for _, partition := range slices.Sorted(maps.Keys(byPartition)) {
		keys := d.keys(queue, partition)
		for batch := range slices.Chunk(byPartition[partition], purgeLetters) {
			n, err := uninterrupted(ctx, func(ctx context.Context) (int, error) {
				return lua.PurgeDead(ctx, d.client, keys, batch)
			})
			d.report(queue, observe.Purged, n)
			purged += n
			if err != nil {
				return purged, fmt.Errorf("purge dead letters of %s: %w", queue, err)
			}
		}
	}
	return purged, nil
}

// uninterrupted makes a call, which returns the number of deletions. If ctx has ended, it makes no call. If ctx ends
// during the call, it still waits for the reply, so that the number is known.
func uninterrupted(ctx context.Context, call func(context.Context) (int, error)) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loop.PassTimeout)
	defer cancel()
	return call(ctx)
}

// PurgeProgress deletes all letters that pass the filter, and returns their number. After each call to the server it
// passes the number so far to progress. Letters added meanwhile stay. With a filter by OlderThan and UpTo alone it
// reads no letters; with any other filter it reads all of them. If ctx ends, it finishes the current call first, so
// that the number is right.
func (d *DeadLetters) PurgeProgress(
	ctx context.Context, queue string, f Filter, progress func(purged int),
) (int, error) {
	onlyAge := f == Filter{OlderThan: f.OlderThan, UpTo: f.UpTo, Newest: f.Newest}
	if onlyAge && f.validate() == nil { // List below returns the error of an invalid filter
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

// purgeOld deletes the letters of all partitions that are old enough for the filter.
func (d *DeadLetters) purgeOld(
	ctx context.Context, queue string, f Filter, progress func(purged int),
) (purged int, err error) {
	counts, err := stream.Partitions(ctx, d.client, d.prefix, queue)
	if err == nil {
		for i := range counts.Latest() {
			n, purgeErr := d.purgeOldest(ctx, d.keys(queue, i), f, func(n int) { progress(purged + n) })
			d.report(queue, observe.Purged, n)
			purged += n
			err = errors.Join(err, purgeErr)
		}
	}
	if err != nil {
		return purged, fmt.Errorf("purge dead letters of %s: %w", queue, err)
	}
	return purged, nil
}

// purgeOldest is purgeOld for one partition. Its first calls delete only whole nodes of the stream, in bounded steps.
// When such a call deletes nothing, the last call deletes the old letters of the oldest node.
func (d *DeadLetters) purgeOldest(
	ctx context.Context, k lua.Keys, f Filter, progress func(purged int),
) (purged int, err error) {
	_, to, err := d.bounds(ctx, k.Dead, f)
	if err != nil || to == "" {
		return 0, err
	}
	threshold, err := nextEntryID(to)
	if err != nil {
		return 0, err
	}
	for wholeNodes := true; ; {
		limit := purgeTrim
		if !wholeNodes {
			limit = 0 // delete exactly the letters below the threshold
		}
		n, err := uninterrupted(ctx, func(ctx context.Context) (int, error) {
			return lua.TrimDead(ctx, d.client, k, threshold, limit)
		})
		if err != nil {
			return purged, err
		}
		purged += n
		progress(purged)
		if !wholeNodes {
			return purged, nil
		}
		wholeNodes = n > 0
	}
}

// nextEntryID returns the lowest ID above id. If id is only a time in milliseconds, it returns the lowest ID above all
// entries of that millisecond.
func nextEntryID(id string) (string, error) {
	parsed, err := view.ParseEntryID(id)
	if err != nil {
		return "", err
	}
	isOnlyTime := id != parsed.String()
	if isOnlyTime || parsed.Seq == math.MaxUint64 {
		return view.EntryID{MS: parsed.MS + 1}.String(), nil
	}
	return view.EntryID{MS: parsed.MS, Seq: parsed.Seq + 1}.String(), nil
}
