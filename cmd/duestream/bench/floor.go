package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

const (
	floorLimit    = 500 // messages per request of the floors
	floorConsumer = "floor"
)

// put schedules n messages by plain commands. Its IDs have the length and the order of the IDs that a Client makes.
func (r *rig) put(ctx context.Context, c rueidis.Client, n int, due time.Time, ids *atomic.Int64) error {
	payloads, times := c.B().Hset().Key(r.keys.Payload).FieldValue(), c.B().Zadd().Key(r.keys.Due).ScoreMember()
	payload, score := rueidis.BinaryString(r.payload), float64(due.UnixMilli())
	for range n {
		id := fmt.Sprintf("0FLOOR%020d", ids.Add(1))
		payloads, times = payloads.FieldValue(id, payload), times.ScoreMember(score, id)
	}
	return firstError("HSET and ZADD", c.DoMulti(ctx, payloads.Build(), times.Build()))
}

// firstError returns the first error among replies.
func firstError(command string, replies []rueidis.RedisResult) error {
	for _, reply := range replies {
		if err := reply.Error(); err != nil {
			return lua.Classify(command, err)
		}
	}
	return nil
}

// drainAlone calls the drain script until no message is due, and returns the rate in messages a second.
func (r *rig) drainAlone(ctx context.Context) (float64, error) {
	moved, begin := 0, time.Now()
	for {
		d, err := lua.Drain(ctx, r.c, r.keys, floorLimit, scheduler.DefaultDrainMaxBytes)
		if err != nil {
			return 0, err
		}
		moved += d.Moved
		if d.Moved == 0 {
			break
		}
	}
	rate := float64(moved) / time.Since(begin).Seconds()
	if moved != r.Messages {
		return 0, fmt.Errorf("the drain script moved %d messages of %d", moved, r.Messages)
	}
	return rate, nil
}

// readNew returns the command that reads new entries for a group.
func (r *rig) readNew(c rueidis.Client, group string, count int64) rueidis.Completed {
	return c.B().Xreadgroup().Group(group, floorConsumer).Count(count).Streams().Key(r.keys.Stream).Id(">").Build()
}

// settlement settles the entries that were read for a group.
type settlement func(ctx context.Context, group string, entries []rueidis.XRangeSlice) error

// readAlone reads all entries of the stream for a group, calls settle after each read, and returns the rate in
// messages a second.
func (r *rig) readAlone(ctx context.Context, group string, settle settlement) (float64, error) {
	read, begin := 0, time.Now()
	for {
		streams, err := r.c.Do(ctx, r.readNew(r.c, group, floorLimit)).AsXReadSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			return 0, fmt.Errorf("read %s: %w", r.Queue, lua.Classify("XREADGROUP", err))
		}
		entries := streams[r.keys.Stream]
		if len(entries) == 0 {
			break
		}
		if err := settle(ctx, group, entries); err != nil {
			return 0, err
		}
		read += len(entries)
	}
	rate := float64(read) / time.Since(begin).Seconds()
	if read != r.Messages {
		return 0, fmt.Errorf("the stream gave %d messages of %d", read, r.Messages)
	}
	return rate, nil
}

// xack is a settlement that only acknowledges the entries.
func (r *rig) xack(ctx context.Context, group string, entries []rueidis.XRangeSlice) error {
	ack := r.c.B().Xack().Key(r.keys.Stream).Group(group).Id(entryIDs(entries)...).Build()
	return lua.Classify("XACK", r.c.Do(ctx, ack).Error())
}

func entryIDs(entries []rueidis.XRangeSlice) []string {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

// combinedRate returns the rate of two stages that run one after the other on one server.
func combinedRate(a, b float64) float64 { return 1 / (1/a + 1/b) }
