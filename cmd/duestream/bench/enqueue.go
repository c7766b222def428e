package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// EnqueueConfig configures Enqueue. Messages is 100,000 by default.
type EnqueueConfig struct {
	Config
	Callers int // who schedule at the same time; default 256
	Batch   int // messages of a ScheduleBatch; default 100
	Calls   int // of the caller that is alone, a round; default 2,000
}

func (c EnqueueConfig) withDefaults() EnqueueConfig {
	c.Config = c.Config.withDefaults(100_000, 5)
	preset(map[*int]int{&c.Callers: 256, &c.Batch: 100, &c.Calls: 2000})
	return c
}

// Enqueue measures how fast messages are taken that are due tomorrow: from one caller after the other, from many at once, and in
// batches. The floor of many callers is what they do without us, ZADD and HSET in one pipeline; those of one caller and of
// batches are the enqueue script itself, called by hand.
func Enqueue(ctx context.Context, cfg EnqueueConfig) (Result, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(Check("callers", cfg.Callers), Check("batch", cfg.Batch), Check("calls", cfg.Calls)); err != nil {
		return Result{}, err
	}
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		e := &enqueue{rig: r, cfg: cfg}
		alone := lower("enqueue_one_caller", "µs")
		many := higher(fmt.Sprintf("enqueue_%d_callers", cfg.Callers), "msg/s")
		batches := higher(fmt.Sprintf("enqueue_batches_of_%d", cfg.Batch), "msg/s")
		if err := e.warm(ctx); err != nil {
			return Result{}, err
		}
		// The caller that is alone comes first: once calls were made at the same time, the client library hands every call over
		// to its writer.
		for _, part := range []struct {
			*series
			floor, product step
		}{
			{alone, e.latency(e.script(1)), e.latency(e.call)},
			{many, e.many(e.plain), e.many(e.call)},
			{batches, e.batches(e.script(cfg.Batch)), e.batches(e.hundred)},
		} {
			if err := r.turns(ctx, part.series, part.floor, part.product); err != nil {
				return Result{}, err
			}
		}
		return result("enqueue", alone, many, batches), nil
	})
}

type enqueue struct {
	*rig
	cfg EnqueueConfig
	sha string
	ids atomic.Int64
}

// call is one call of whoever schedules.
type call func(ctx context.Context) error

// warm has the server learn the script, and the queue registered, before the clock runs.
func (e *enqueue) warm(ctx context.Context) error {
	for _, node := range e.c.Nodes() {
		sha, err := node.Do(ctx, node.B().ScriptLoad().Script(lua.Source("enqueue")).Build()).ToString()
		if err != nil {
			return fmt.Errorf("load the enqueue script: %w", lua.Classify("SCRIPT LOAD", err))
		}
		e.sha = sha
	}
	if err := e.call(ctx); err != nil {
		return err
	}
	return e.clear(ctx)
}

// id is as long as those that a Client makes, and in order like them.
func (e *enqueue) id() string { return fmt.Sprintf("0FLOOR%020d", e.ids.Add(1)) }

func (e *enqueue) call(ctx context.Context) error {
	_, err := e.client.Schedule(ctx, e.Queue, e.payload, bridge.In(tomorrow))
	return err
}

// plain is what a producer without us sends: the two commands that leave the same behind.
func (e *enqueue) plain(ctx context.Context) error {
	id, due := e.id(), float64(time.Now().Add(tomorrow).UnixMilli())
	for _, reply := range e.c.DoMulti(ctx,
		e.c.B().Hset().Key(e.keys.Payload).FieldValue().FieldValue(id, rueidis.BinaryString(e.payload)).Build(),
		e.c.B().Zadd().Key(e.keys.Due).ScoreMember().ScoreMember(due, id).Build(),
	) {
		if err := reply.Error(); err != nil {
			return lua.Classify("ZADD", err)
		}
	}
	return nil
}

// script is the enqueue script with n messages, and the arguments that a Client gives it.
func (e *enqueue) script(n int) call {
	k, done, window := e.keys, "", strconv.FormatInt(time.Minute.Milliseconds(), 10)
	keys := []string{k.Due, k.Payload, k.Meta, k.Stream, k.Wake, k.Seen, k.Policy}
	when := string(lua.After(tomorrow))
	return func(ctx context.Context) error {
		token := e.id()
		args := append(make([]string, 0, 3+5*n), token, done, window)
		for range n {
			args = append(args, e.id(), when, rueidis.BinaryString(e.payload), "", "")
		}
		done = token
		reply, err := e.c.Do(ctx,
			e.c.B().Evalsha().Sha1(e.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).AsIntSlice()
		if err == nil && (len(reply) != 2*n || reply[0] != int64(lua.Scheduled)) {
			err = fmt.Errorf("the enqueue script answered %v", reply)
		}
		return lua.Classify("EVALSHA", err)
	}
}

// hundred is a batch as callers make it, of 100 unless configured otherwise.
func (e *enqueue) hundred(ctx context.Context) error {
	batch := make([]bridge.NewMessage, e.cfg.Batch)
	for i := range batch {
		batch[i] = bridge.NewMessage{Payload: e.payload, Delay: tomorrow}
	}
	return e.schedule(ctx, e.client, batch)
}

// latency is the median of one call after the other, in µs. Their context cannot end: one that can has the call made by another
// goroutine, and the client library's as well.
func (e *enqueue) latency(do call) step {
	return func(ctx context.Context) (float64, error) {
		took, lasting := make([]time.Duration, e.cfg.Calls), context.WithoutCancel(ctx)
		for i := range took {
			begin := time.Now()
			if err := errors.Join(ctx.Err(), do(lasting)); err != nil {
				return 0, err
			}
			took[i] = time.Since(begin)
		}
		slices.Sort(took)
		return float64(took[len(took)/2].Nanoseconds()) / 1000, e.clear(ctx)
	}
}

// many is how many messages a second the callers get through together.
func (e *enqueue) many(do call) step {
	return func(ctx context.Context) (float64, error) {
		var next atomic.Int64
		begin := time.Now()
		err := together(ctx, e.cfg.Callers, func(ctx context.Context) error {
			for next.Add(1) <= int64(e.Messages) {
				if err := do(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		rate := float64(e.Messages) / time.Since(begin).Seconds()
		if err != nil {
			return 0, err
		}
		return rate, e.clear(ctx)
	}
}

// batches is how many messages a second one caller gets through in batches, as in latency.
func (e *enqueue) batches(do call) step {
	return func(ctx context.Context) (float64, error) {
		calls, lasting := max(1, e.Messages/e.cfg.Batch), context.WithoutCancel(ctx)
		begin := time.Now()
		for range calls {
			if err := errors.Join(ctx.Err(), do(lasting)); err != nil {
				return 0, err
			}
		}
		return float64(calls*e.cfg.Batch) / time.Since(begin).Seconds(), e.clear(ctx)
	}
}
