package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Of 42 settings that were tried, these gave the highest rate, with one group and with two: drains and reads at the
// same time, 100 messages per drain and 500 per read. Larger drains, drains before reads, separate connections, a
// delayed flush and larger buffers gave a lower rate, or the same.
const (
	drainCount = 100
	readCount  = 500
)

// byHand is the floor: a minimal program written by hand. It calls moveDue in a loop, and at the same time reads
// entries, and acknowledges and deletes them at once. Its messages equal ours; its entries have one field less.
func (r *rig) byHand(ctx context.Context, groups []string, cpu *[]float64) (rate float64, err error) {
	if err := r.fillDue(ctx, groups...); err != nil {
		return 0, err
	}
	rate, err = r.rate(ctx, cpu, func() error {
		var drains atomic.Bool // one of the two goroutines drains, the other one reads
		return together(ctx, 2, func(ctx context.Context) error {
			if drains.CompareAndSwap(false, true) {
				return r.drainByHand(ctx)
			}
			return r.readByHand(ctx, groups)
		})
	})
	if err := errors.Join(err, r.hold(ctx, false)); err != nil {
		return 0, err
	}
	return rate, r.clear(ctx)
}

// readByHand reads all entries for each group. One request acknowledges and deletes the entries of the last reads,
// and reads the next entries, so it needs one round trip.
func (r *rig) readByHand(ctx context.Context, groups []string) error {
	c, entries := r.Redis.Blocking, make([][]string, len(groups)) // IDs of the last read of each group
	for done := 0; done < len(groups)*r.Messages; {
		var commands rueidis.Commands
		for i, group := range groups {
			if len(entries[i]) > 0 {
				commands = append(commands, c.B().Xack().Key(r.keys.Stream).Group(group).Id(entries[i]...).Build())
			}
		}
		if len(entries[0]) > 0 { // every group has read the same entries as the first
			commands = append(commands, c.B().Xdel().Key(r.keys.Stream).Id(entries[0]...).Build())
		}
		acks := len(commands)
		for _, group := range groups {
			commands = append(commands, r.readNew(c, group, readCount))
		}
		replies := c.DoMulti(ctx, commands...)
		if err := firstError("XACK and XDEL", replies[:acks]); err != nil {
			return err
		}
		for i, reply := range replies[acks:] {
			streams, err := reply.AsXReadSlices()
			if err != nil && !rueidis.IsRedisNil(err) {
				return lua.Classify("XREADGROUP", err)
			}
			entries[i] = entryIDs(streams[r.keys.Stream])
			done += len(entries[i])
		}
	}
	var last rueidis.Commands
	for i, group := range groups {
		if len(entries[i]) > 0 {
			last = append(last, c.B().Xack().Key(r.keys.Stream).Group(group).Id(entries[i]...).Build(),
				c.B().Xdel().Key(r.keys.Stream).Id(entries[i]...).Build())
		}
	}
	return firstError("XACK and XDEL", c.DoMulti(ctx, last...))
}

// drainByHand moves all messages into the stream with moveDue.
func (r *rig) drainByHand(ctx context.Context) error {
	now := time.Now()
	for moved := 0; moved < r.Messages; {
		n, err := r.moveDue(ctx, now, drainCount)
		if err == nil && n == 0 {
			err = fmt.Errorf("the drain by hand moved %d messages of %d", moved, r.Messages)
		}
		if err != nil {
			return lua.Classify("EVALSHA", err)
		}
		moved += n
	}
	return nil
}
