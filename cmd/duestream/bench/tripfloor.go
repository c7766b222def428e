package bench

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// moveDueScript is a drain as one writes it by hand: it moves due messages from the schedule into the stream.
var moveDueScript = rueidis.NewLuaScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #due == 0 then return 0 end
local ids = {}
for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
local payloads = redis.call('HMGET', KEYS[2], unpack(ids))
for i, id in ipairs(ids) do redis.call('XADD', KEYS[3], '*', 'id', id, 'payload', payloads[i], 'due', due[2 * i]) end
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call('HDEL', KEYS[2], unpack(ids))
return #ids`)

// moveDue moves at most limit messages that are due at now, and returns their number.
func (r *rig) moveDue(ctx context.Context, now time.Time, limit int) (int, error) {
	keys := []string{r.keys.Due, r.keys.Payload, r.keys.Stream}
	args := []string{strconv.FormatInt(now.UnixMilli(), 10), strconv.Itoa(limit)}
	moved, err := moveDueScript.Exec(ctx, r.c, keys, args).AsInt64()
	return int(moved), err
}

// floorService is the same service by plain commands, with none of our other features: HSET and ZADD for each
// message, moveDue every 10 ms, and a worker that reads entries, and acknowledges and deletes them at once.
func (t *trip) floorService() service {
	var ids atomic.Int64
	return service{
		start: func(context.Context) ([]*part, error) {
			return []*part{start(untilEnd(t.move)), start(untilEnd(t.read))}, nil
		},
		send: func(ctx context.Context) error { return t.put(ctx, t.c, 1, t.server.now().Add(tripDelay), &ids) },
	}
}

// untilEnd returns run without the error that the end of its context causes.
func untilEnd(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	}
}

func (t *trip) move(ctx context.Context) error {
	for {
		moved, err := t.moveDue(ctx, t.server.now(), floorLimit)
		if err == nil && moved < floorLimit {
			err = pause(ctx, 10*time.Millisecond)
		}
		if err != nil {
			return lua.Classify("EVALSHA", err)
		}
	}
}

func (t *trip) read(ctx context.Context) error {
	c := t.Redis.Blocking
	for {
		streams, err := c.Do(ctx, c.B().Xreadgroup().Group(group, floorConsumer).Count(floorLimit).Block(1000).
			Streams().Key(t.keys.Stream).Id(">").Build()).AsXReadSlices()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return lua.Classify("XREADGROUP", err)
		}
		entries := streams[t.keys.Stream]
		for _, e := range entries {
			for _, f := range e.FieldValues {
				if f.Field == "due" {
					due, _ := strconv.ParseInt(f.Value, 10, 64)
					t.handle(time.UnixMilli(due))
				}
			}
		}
		ids := entryIDs(entries)
		ack := t.c.B().Xack().Key(t.keys.Stream).Group(group).Id(ids...).Build()
		del := t.c.B().Xdel().Key(t.keys.Stream).Id(ids...).Build()
		err = firstError("XACK and XDEL", t.c.DoMulti(ctx, ack, del))
		if err != nil {
			return err
		}
	}
}
