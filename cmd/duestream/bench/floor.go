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

// put schedules n messages without our client. Its IDs have the length and the order of IDs that a Client makes.
func (r *rig) put(ctx context.Context, c rueidis.Client, n int, due time.Time, ids *atomic.Int64) error {
	payloads, times := c.B().Hset().Key(r.keys.Payload).FieldValue(), c.B().Zadd().Key(r.keys.Due).ScoreMember()
	payload, score := rueidis.BinaryString(r.payload), float64(due.UnixMilli())
	for range n {
		id := fmt.Sprintf("0FLOOR%020d", ids.Add(1))
		payloads, times = payloads.FieldValue(id, payload), times.ScoreMember(score, id)
	}
	return failed("HSET and ZADD", c.DoMulti(ctx, payloads.Build(), times.Build()))
}

// failed returns the first error among replies.
func failed(command string, replies []rueidis.RedisResult) error {
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

// readAlone reads all entries of the stream for a group, calls settle after each read, and returns the rate in
// messages a second.
func (r *rig) readAlone(
	ctx context.Context, group string, settle func(context.Context, []rueidis.XRangeSlice) error,
) (float64, error) {
	read, begin := 0, time.Now()
	for {
		next := r.c.B().Xreadgroup().Group(group, floorConsumer).Count(floorLimit).Streams().Key(r.keys.Stream).Id(">").Build()
		streams, err := r.c.Do(ctx, next).AsXReadSlices()
		if err != nil && !rueidis.IsRedisNil(err) {
			return 0, fmt.Errorf("read %s: %w", r.Queue, lua.Classify("XREADGROUP", err))
		}
		entries := streams[r.keys.Stream]
		if len(entries) == 0 {
			break
		}
		if err := settle(ctx, entries); err != nil {
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

// xack returns a function that only acknowledges entries for a group.
func (r *rig) xack(group string) func(context.Context, []rueidis.XRangeSlice) error {
	return func(ctx context.Context, entries []rueidis.XRangeSlice) error {
		ids := make([]string, len(entries))
		for i, e := range entries {
			ids[i] = e.ID
		}
		return lua.Classify("XACK", r.c.Do(ctx, r.c.B().Xack().Key(r.keys.Stream).Group(group).Id(ids...).Build()).Error())
	}
}

// harmonic returns the rate of two stages that run one after the other on one server.
func harmonic(a, b float64) float64 { return 1 / (1/a + 1/b) }
