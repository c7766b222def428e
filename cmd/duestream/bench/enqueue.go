package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// EnqueueConfig configures Enqueue. Messages is 100,000 by default.
type EnqueueConfig struct {
	Config
	Callers []int // numbers of concurrent callers, each measured by itself; default 64 and 256
	Batch   int   // messages per ScheduleBatch; default 100
	Calls   int   // calls of the single caller in a round; default 2,000
}

const inFlight = 8 // concurrent batches

func (c EnqueueConfig) withDefaults() EnqueueConfig {
	c.Config = c.Config.withDefaults(100_000, 5)
	c.Batch, c.Calls = cmp.Or(c.Batch, 100), cmp.Or(c.Calls, 2000)
	if len(c.Callers) == 0 {
		c.Callers = []int{64, 256}
	}
	return c
}

// Enqueue measures how fast messages that are due tomorrow are scheduled: by a single caller, by concurrent callers,
// and in batches, one by one and concurrently. For the single caller it also measures the server's work per message.
// The floor is a producer that uses plain commands: HSET and ZADD in one pipeline, one of each for a message or a whole
// batch. For concurrent calls, the floor is the faster of two clients: the default client, and a client that is tuned
// for such calls.
func Enqueue(ctx context.Context, cfg EnqueueConfig) (Result, error) {
	cfg = cfg.withDefaults()
	err := errors.Join(Check("callers", cfg.Callers...), Check("batch", cfg.Batch), Check("calls", cfg.Calls))
	if err != nil {
		return Result{}, err
	}
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		e := &enqueue{rig: r, cfg: cfg, clients: []rueidis.Client{r.c}}
		closeTuned, err := e.addTunedClient()
		if err != nil {
			return Result{}, err
		}
		defer closeTuned()
		if err := e.call(ctx); err != nil { // so that the server has the script, and the queue is registered
			return Result{}, err
		}
		if err := e.clear(ctx); err != nil {
			return Result{}, err
		}
		alone, batches := lower("enqueue_one_caller", "µs"), higher(fmt.Sprintf("enqueue_batches_of_%d", cfg.Batch), "msg/s")
		cpu, commands := lower("enqueue_one_caller_server", "µs/msg"), lower("enqueue_one_caller_commands", "commands/msg")
		figures := []*series{alone, cpu, commands, batches}
		type part struct {
			*series
			floor, product measurement
		}
		// The single caller comes first: after concurrent calls, the client library passes every call to its writer
		// goroutine.
		parts := []part{
			{alone, e.latency(e.plain(r.c, 1), &cpu.floor, &commands.floor), e.latency(e.call, &cpu.values, &commands.values)},
			{batches, e.sendRate(1, cfg.Batch, e.plain(r.c, cfg.Batch)), e.sendRate(1, cfg.Batch, e.batch)},
		}
		addConcurrent := func(name string, callers, size int, do call) {
			s := higher(name, "msg/s")
			figures = append(figures, s)
			parts = append(parts, part{s, e.fastestFloor(callers, size), e.sendRate(callers, size, do)})
		}
		for _, n := range cfg.Callers {
			addConcurrent(fmt.Sprintf("enqueue_%d_callers", n), n, 1, e.call)
		}
		addConcurrent(fmt.Sprintf("enqueue_%d_batches_of_%d", inFlight, cfg.Batch), inFlight, cfg.Batch, e.batch)
		for _, p := range parts {
			if err := r.turns(ctx, p.series, p.floor, p.product); err != nil {
				return Result{}, err
			}
		}
		return result("enqueue", figures...), nil
	})
}

type enqueue struct {
	*rig
	cfg     EnqueueConfig
	clients []rueidis.Client // clients of the floor
	ids     atomic.Int64
}

// addTunedClient adds a client that is tuned for concurrent calls, and returns the function that closes it. Of 24
// settings (one and two connections, flushes after 0 to 200 µs, buffers, rings, Nagle's algorithm), one connection that
// collects calls for 50 µs was fastest with 64 and with 256 callers: 1.7 to 2.3 times as fast as the default. 20 and
// 75 µs came near. Buffers, rings and Nagle's algorithm changed nothing.
func (e *enqueue) addTunedClient() (closeClient func(), err error) {
	connect := e.Redis.Connect()
	if connect == nil {
		return func() {}, nil
	}
	opt := *connect
	opt.PipelineMultiplex, opt.MaxFlushDelay = -1, 50*time.Microsecond
	tuned, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, lua.Classify("connect", err)
	}
	e.clients = append(e.clients, tuned)
	return tuned.Close, nil
}

// fastestFloor measures the rate of the floor with its fastest client.
func (e *enqueue) fastestFloor(callers, size int) measurement {
	return func(ctx context.Context) (fastest float64, err error) {
		for _, c := range e.clients {
			rate, err := e.sendRate(callers, size, e.plain(c, size))(ctx)
			if err != nil {
				return 0, err
			}
			fastest = max(fastest, rate)
		}
		return fastest, nil
	}
}

// call schedules one message or batch.
type call func(ctx context.Context) error

func (e *enqueue) call(ctx context.Context) error {
	_, err := e.client.Schedule(ctx, e.Queue, e.payload, bridge.In(tomorrow))
	return err
}

// batch schedules a batch through our client.
func (e *enqueue) batch(ctx context.Context) error {
	batch := make([]bridge.NewMessage, e.cfg.Batch)
	for i := range batch {
		batch[i] = bridge.NewMessage{Payload: e.payload, Delay: tomorrow}
	}
	return e.schedule(ctx, e.client, batch)
}

// plain returns the call of the floor for n messages: the two commands that store the same data.
func (e *enqueue) plain(c rueidis.Client, n int) call {
	return func(ctx context.Context) error { return e.put(ctx, c, n, time.Now().Add(tomorrow), &e.ids) }
}

// latency measures the median time of sequential calls, in µs. The calls get a context that cannot end, because with a
// context that can end, duestream's client and the client library would each pass the call to another goroutine. The
// server's work per message is appended to cpu and commands, if the server reports it.
func (e *enqueue) latency(do call, cpu, commands *[]float64) measurement {
	return func(ctx context.Context) (float64, error) {
		took, endless := make([]time.Duration, e.cfg.Calls), context.WithoutCancel(ctx)
		spent, err := e.spent(ctx, func() error {
			for i := range took {
				begin := time.Now()
				if err := errors.Join(ctx.Err(), do(endless)); err != nil {
					return err
				}
				took[i] = time.Since(begin)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		if spent != nil {
			*cpu = append(*cpu, spent.cpu/float64(len(took)))
			*commands = append(*commands, spent.commands/float64(len(took)))
		}
		slices.Sort(took)
		return float64(took[len(took)/2].Nanoseconds()) / 1000, e.clear(ctx)
	}
}

// sendRate measures how many messages a second the callers send together, with size messages per call. The calls of a
// single caller get a context that cannot end, as in latency.
func (e *enqueue) sendRate(callers, size int, do call) measurement {
	return func(ctx context.Context) (float64, error) {
		var next atomic.Int64
		calls, begin := max(1, e.Messages/size), time.Now()
		err := together(ctx, callers, func(ctx context.Context) error {
			callCtx := ctx
			if callers == 1 {
				callCtx = context.WithoutCancel(ctx)
			}
			for next.Add(1) <= int64(calls) {
				if err := errors.Join(ctx.Err(), do(callCtx)); err != nil {
					return err
				}
			}
			return nil
		})
		rate := float64(calls*size) / time.Since(begin).Seconds()
		if err != nil {
			return 0, err
		}
		return rate, e.clear(ctx)
	}
}
