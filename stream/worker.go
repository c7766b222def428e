package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Defaults of WorkerConfig.
const (
	DefaultConcurrency     = 16
	DefaultShutdownTimeout = 20 * time.Second
	DefaultCancelGrace     = 2 * time.Second
	DefaultBlock           = 2 * time.Second
	MaxConcurrency         = 10_000
)

// WorkerConfig configures a Worker. Client, Blocking, Queue, Group and Handler are required.
type WorkerConfig struct {
	// Client sends everything but the blocking read; closed by whoever made it.
	Client rueidis.Client
	// Blocking sends the blocking read: a client made with AlwaysPipelining, so that a stop interrupts it.
	Blocking rueidis.Client

	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string
	Group  string

	// Consumer names this worker among its group's. It must be unique among live workers; the default is (host, process, random).
	// A fixed name takes up, at start, what its last bearer still held.
	Consumer string

	Handler Handler

	// Settled, when set, is told how each delivery ended, also of those that the handler never saw because they are meant for another
	// group. It is called from the worker's own goroutines, one call at a time for an entry, and must not block: acknowledgements wait.
	Settled func(*Message, Settlement)

	// Concurrency is how many messages are held at once: handlers that run, and acknowledgements under way. Default 16, at most 10,000.
	Concurrency int

	// ShutdownTimeout is how long handlers may go on after Run's context is cancelled, before theirs is, too. Default 20s; negative
	// means not at all. Too low: work is cut short and done again elsewhere. Too high: deploys wait.
	ShutdownTimeout time.Duration

	// CancelGrace is how long Run then waits for handlers to return. What is not back by then stays pending for the reclaimer, and
	// the log says so. Default 2s.
	CancelGrace time.Duration

	// Block is how long one read waits at the server. Default 2s. It is no source of lateness.
	Block time.Duration

	// Logger may be nil: nothing is logged then.
	Logger *slog.Logger
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	if c.Prefix == "" {
		c.Prefix = lua.DefaultPrefix
	}
	if c.Concurrency == 0 {
		c.Concurrency = DefaultConcurrency
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = DefaultShutdownTimeout
	}
	if c.CancelGrace <= 0 {
		c.CancelGrace = DefaultCancelGrace
	}
	if c.Block <= 0 {
		c.Block = DefaultBlock
	}
	if c.Consumer == "" {
		host, _ := os.Hostname()
		c.Consumer = strings.ToLower(fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), ulid.Make()))
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c WorkerConfig) validate() error {
	var errs []error
	if c.Client == nil || c.Blocking == nil {
		errs = append(errs, lua.Invalid("clients", "nil", "Client and Blocking are required"))
	}
	if c.Handler == nil {
		errs = append(errs, lua.Invalid("handler", "nil", "is required"))
	}
	if c.Concurrency < 1 || c.Concurrency > MaxConcurrency {
		errs = append(errs, lua.Invalid("concurrency", fmt.Sprint(c.Concurrency), "must be between 1 and %d", MaxConcurrency))
	}
	if c.Consumer == lua.ReclaimConsumer {
		errs = append(errs, lua.Invalid("consumer", c.Consumer, "is the reclaimer's own name"))
	}
	return errors.Join(append(errs, lua.CheckPrefix(c.Prefix), lua.CheckQueue(c.Queue), lua.CheckGroup(c.Group),
		lua.CheckConsumer(c.Consumer))...)
}

// WorkerStats counts what a worker did since it was made.
type WorkerStats struct {
	Delivered, Acknowledged, Retried, Dead, Released, Skipped, Lost uint64
}

// Worker delivers the messages of one queue to one group's handler, at least once. It is safe for concurrent use; Run may be
// called once.
type Worker struct {
	cfg  WorkerConfig
	keys lua.Keys
	log  *slog.Logger

	slots   *slots
	held    holdings
	runners runners
	settle  settler
	policy  atomic.Pointer[Policy]
	broken  atomic.Uint64 // counts broken connections: entry IDs from before one are compared with their message IDs
	state   condition
	ran     atomic.Bool
	joined  bool // the group was there once; used by the read loop only

	policyChanged chan struct{} // poked
	refresh       chan struct{} // poked
	forgotten     atomic.Bool   // the queue is to be registered again

	delivered, acknowledged, retried, dead, released, skipped, lost atomic.Uint64
}

// NewWorker checks the configuration; all that is wrong with it is in the error. Redis is not touched before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("stream: worker: %w", err)
	}
	w := &Worker{cfg: cfg, keys: lua.NewKeys(cfg.Prefix, cfg.Queue), slots: newSlots(cfg.Concurrency),
		policyChanged: make(chan struct{}, 1), refresh: make(chan struct{}, 1)}
	w.log = cfg.Logger.With(slog.String("queue", cfg.Queue), slog.String("group", cfg.Group))
	w.state = condition{log: w.log, what: "worker"}
	w.runners.handle = w.handle
	w.settle = settler{w: w, wake: make(chan struct{}, 1)}
	defaults := DefaultPolicy()
	w.policy.Store(&defaults)
	return w, nil
}

// Consumer returns the worker's name within its group.
func (w *Worker) Consumer() string { return w.cfg.Consumer }

// Stats returns the counts so far.
func (w *Worker) Stats() WorkerStats {
	return WorkerStats{
		Delivered: w.delivered.Load(), Acknowledged: w.acknowledged.Load(), Retried: w.retried.Load(), Dead: w.dead.Load(),
		Released: w.released.Load(), Skipped: w.skipped.Load(), Lost: w.lost.Load(),
	}
}

// ErrAbandoned: handlers ignored their cancelled context; their entries stay pending until the visibility timeout.
var ErrAbandoned = errors.New("handlers did not return: their entries stay pending")

// Run reads, handles and settles until ctx is cancelled, then stops reading, lets handlers finish, releases what never started,
// and returns nil: a clean stop leaves nothing pending and burns no attempt. It goes on through outages of Redis for ever.
// It returns ErrAbandoned when handlers had to be left behind.
func (w *Worker) Run(ctx context.Context) error {
	if w.ran.Swap(true) {
		return errors.New("stream: worker: Run may be called once")
	}
	// Handlers, extends and acknowledgements outlive ctx; hard ends them.
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	var keepers sync.WaitGroup
	upkeep, endUpkeep := context.WithCancel(hard)
	keepers.Go(func() { w.extendLoop(upkeep) })
	keepers.Go(func() { w.refreshLoop(upkeep) })
	keepers.Go(func() { w.settle.run(upkeep) })

	w.readLoop(ctx, hard)

	err := w.drainHandlers(stop)
	endUpkeep()
	keepers.Wait()
	w.leave()
	return err
}

// drainHandlers waits for handlers and their settlements: first in peace, then with their contexts cancelled.
func (w *Worker) drainHandlers(stop context.CancelCauseFunc) error {
	soft := time.NewTimer(max(0, w.cfg.ShutdownTimeout))
	defer soft.Stop()
	select {
	case <-w.held.empty():
		return nil
	case <-soft.C:
	}
	w.held.cancelAll(ErrStopping)
	grace := time.NewTimer(w.cfg.CancelGrace)
	defer grace.Stop()
	select {
	case <-w.held.empty():
		return nil
	case <-grace.C:
	}
	left := w.held.list()
	for _, d := range left {
		w.log.Warn("handler did not return: its entry stays pending until the visibility timeout",
			slog.String("id", d.msg.ID), slog.String("entry", d.msg.EntryID))
	}
	stop(ErrStopping)
	return fmt.Errorf("stream: stop %s/%s: %d of them: %w", w.cfg.Queue, w.cfg.Group, len(left), ErrAbandoned)
}

// leave releases what was delivered to this consumer but never seen (a read was cut off), and removes the consumer when it holds
// nothing. Whatever fails here is left to the reclaimer.
func (w *Worker) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := w.releaseUnseen(ctx)
	if err == nil {
		_, err = lua.DropConsumers(ctx, w.cfg.Client, w.keys, w.cfg.Group, []string{w.cfg.Consumer})
	}
	if err != nil && !errors.Is(err, lua.ErrNoGroup) {
		w.log.Warn("could not take leave: what this consumer holds is reclaimed after the visibility timeout", slog.Any("error", err))
	}
}

// releaseUnseen releases, in bounded calls, what is pending for this consumer and not held.
func (w *Worker) releaseUnseen(ctx context.Context) error {
	for {
		unseen, err := w.unseen(ctx, settleBatch)
		if err != nil || len(unseen) == 0 {
			return err
		}
		failures := make([]lua.Failure, len(unseen))
		for i, entry := range unseen {
			failures[i] = lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionRelease, Delay: -1}
		}
		outcomes, err := lua.Retry(ctx, w.cfg.Client, w.keys, w.cfg.Group, w.policy.Load().Attempts(), failures)
		if err != nil {
			return err
		}
		for _, outcome := range outcomes {
			switch outcome {
			case lua.Released:
				w.released.Add(1)
			case lua.Stuck: // it would be seen again and again
				return errors.New("the stream of dead letters refuses an entry")
			}
		}
	}
}

// handle runs the handler on one delivery and passes its outcome on.
func (w *Worker) handle(d *delivery) {
	returned := false
	defer func() {
		if !returned { // runtime.Goexit: nothing else runs after it
			w.finish(d, errors.New("handler ended its goroutine"))
		}
	}()
	err := w.call(d)
	returned = true
	w.finish(d, err)
}

func (w *Worker) call(d *delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			err = fmt.Errorf("panic: %v\n%s", p, stack)
			w.log.Error("handler panicked", slog.String("id", d.msg.ID), slog.Any("panic", p), slog.String("stack", string(stack)))
		}
	}()
	return w.cfg.Handler(d.ctx, &d.msg)
}

func (w *Worker) finish(d *delivery, err error) {
	switch {
	case d.isLost():
		w.lost.Add(1)
		w.log.Info("finished after the delivery was lost: no effect", slog.String("id", d.msg.ID), slog.String("entry", d.msg.EntryID))
		w.settled(d, Lost, true)
		w.drop(d)
	case err == nil:
		w.settle.ack(d)
	case errors.Is(context.Cause(d.ctx), ErrStopping), errors.Is(context.Cause(d.ctx), ErrUnreachable):
		// Cut short by the stop or an outage, not by its own failing: that is no attempt.
		w.settle.fail(d, lua.Failure{Action: lua.ActionRelease, Delay: -1})
	default:
		w.settle.fail(d, failureOf(err))
	}
}
