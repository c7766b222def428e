package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// These settings gave the most of 42 tried, with one group and with two: drains and reads at the same time, 100
// messages per drain and 500 per read. Larger drains, drains before reads, separate connections, a delayed flush and
// larger buffers gave less, or the same.
const (
	drainCount = 100
	readCount  = 500
)

// byHand is the floor: a minimal program written by hand. It calls moveDue in a loop, and at the same time reads
// entries, and acknowledges and deletes them at once. Its messages equal ours; its entries have one field less.
func (r *rig) byHand(ctx context.Context, d delivering, server *[]float64) (rate float64, err error) {
	if err := r.due(ctx, "fill", d.groups...); err != nil {
		return 0, err
	}
	rate, err = r.rated(ctx, server, func() error {
		var first atomic.Bool
		return together(ctx, 2, func(ctx context.Context) error {
			if first.CompareAndSwap(false, true) {
				return r.drainByHand(ctx, r.c, drainCount)
			}
			return r.readByHand(ctx, r.Redis.Blocking, d.groups, readCount)
		})
	})
	if err := errors.Join(err, r.hold(ctx, false)); err != nil {
		return 0, err
	}
	return rate, r.clear(ctx)
}

// readByHand reads all entries for each group. One request acknowledges and deletes the entries of the last reads,
// and reads on. So the server gets all commands at once, and the client needs one round trip.
func (r *rig) readByHand(ctx context.Context, c rueidis.Client, groups []string, count int) error {
	read, entries := make([]int, len(groups)), make([][]string, len(groups))
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
			commands = append(commands, c.B().Xreadgroup().Group(group, floorConsumer).Count(int64(count)).
				Streams().Key(r.keys.Stream).Id(">").Build())
		}
		replies := c.DoMulti(ctx, commands...)
		if err := failed("XACK and XDEL", replies[:acks]); err != nil {
			return err
		}
		for i, reply := range replies[acks:] {
			streams, err := reply.AsXReadSlices()
			if err != nil && !rueidis.IsRedisNil(err) {
				return lua.Classify("XREADGROUP", err)
			}
			entries[i] = entries[i][:0]
			for _, e := range streams[r.keys.Stream] {
				entries[i] = append(entries[i], e.ID)
			}
			read[i] += len(entries[i])
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
	return failed("XACK and XDEL", c.DoMulti(ctx, last...))
}

// drainByHand moves all messages into the stream with moveDue.
func (r *rig) drainByHand(ctx context.Context, c rueidis.Client, count int) error {
	keys, now := []string{r.keys.Due, r.keys.Payload, r.keys.Stream}, strconv.FormatInt(time.Now().UnixMilli(), 10)
	for moved := 0; moved < r.Messages; {
		n, err := moveDue.Exec(ctx, c, keys, []string{now, strconv.Itoa(count)}).AsInt64()
		if err == nil && n == 0 {
			err = fmt.Errorf("the drain by hand moved %d messages of %d", moved, r.Messages)
		}
		if err != nil {
			return lua.Classify("EVALSHA", err)
		}
		moved += int(n)
	}
	return nil
}
