package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Bounds of a sweep for orphans.
const (
	orphanConfirm    = time.Minute
	orphanSteps      = 20  // of a pass, per hash
	orphanLimit      = 500 // fields per step
	orphanBytes      = 1 << 20
	orphanCandidates = 10_000 // remembered per hash
)

// orphanSweep looks through one hash for fields without a member of the schedule: what a producer left that died, or did not use
// MULTI, between HSET and ZADD. Such a producer may be about to run ZADD, so a field goes only when it is seen a minute later again.
type orphanSweep struct {
	hash   string
	cursor string
	found  map[string]time.Time // candidates, and when they were seen first
}

func newOrphanSweep(hash string) orphanSweep {
	return orphanSweep{hash: hash, found: map[string]time.Time{}}
}

// SweepOrphans does one pass over payload and meta: it deletes fields that were without a member of the schedule a minute ago and still
// are, and looks for more. The next pass goes on where this one ended. waiting is how many fields are still to be confirmed.
func (t *Trimmer) SweepOrphans(ctx context.Context) (deleted, waiting int, err error) {
	return t.sweepOrphans(ctx, time.Now())
}

func (t *Trimmer) sweepOrphans(ctx context.Context, now time.Time) (deleted, waiting int, err error) {
	for i := range t.orphans {
		n, err := t.orphans[i].pass(ctx, t.client, t.keys.Due, now)
		deleted += n
		if err != nil {
			return deleted, waiting, fmt.Errorf("stream: sweep orphans of %s: %w", t.queue, err)
		}
		waiting += len(t.orphans[i].found)
	}
	return deleted, waiting, nil
}

func (o *orphanSweep) pass(ctx context.Context, c rueidis.Client, due string, now time.Time) (deleted int, err error) {
	limit, err := o.limit(ctx, c)
	if err != nil || limit == 0 {
		clear(o.found)
		return 0, err
	}
	for range orphanSteps {
		confirmed := o.confirmed(now)
		swept, err := lua.SweepOrphans(ctx, c, due, o.hash, o.cursor, limit, confirmed)
		if err != nil {
			return deleted, err
		}
		for _, field := range confirmed {
			delete(o.found, field)
		}
		for _, field := range swept.Found {
			if _, known := o.found[field]; !known && len(o.found) < orphanCandidates {
				o.found[field] = now
			}
		}
		deleted += swept.Deleted
		o.cursor = swept.Cursor
		if o.cursor == "0" && len(confirmed) < orphanLimit {
			break
		}
	}
	return deleted, nil
}

// confirmed returns candidates that have waited long enough, at most as many as one step takes.
func (o *orphanSweep) confirmed(now time.Time) []string {
	var fields []string
	for field, since := range o.found {
		if now.Sub(since) >= orphanConfirm {
			if fields = append(fields, field); len(fields) == orphanLimit {
				break
			}
		}
	}
	return fields
}

// limit returns how many fields a step may look at: a scan carries the values, too, inside the server. Zero: the hash is empty.
func (o *orphanSweep) limit(ctx context.Context, c rueidis.Client) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	replies := c.DoMulti(ctx, c.B().Hlen().Key(o.hash).Build(), c.B().MemoryUsage().Key(o.hash).Build())
	fields, err := replies[0].AsInt64()
	if err != nil || fields == 0 {
		return 0, lua.Classify("HLEN "+o.hash, err)
	}
	bytes, err := replies[1].AsInt64()
	if err != nil { // a server without MEMORY, or a user who may not use it
		return 20, nil
	}
	return int(min(orphanLimit, max(1, orphanBytes*fields/(bytes+1)))), nil
}
