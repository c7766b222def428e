package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of WorkerConfig.
const (
	DefaultConcurrency     = 16
	DefaultShutdownTimeout = 20 * time.Second
	DefaultCancelGrace     = 2 * time.Second
	DefaultAbandonAfter    = 10 * time.Second
	LeastMaxAbandoned      = 8 // default of MaxAbandoned for small values of Concurrency
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

	// Queues, instead of Queue, are several that share the slots. While more than one has a backlog, each gets deliveries by its
	// weight; a queue whose backlog is gone leaves its share to the others. Give at least two slots for each partition of them:
	// with fewer it takes up to 100 ms to see that a queue has something.
	Queues []WorkerQueue

	// Strict has them served in the order in which they are named: a queue is read only while none before it has a backlog. While
	// the first ones are never empty the last ones are not served at all, for as long as that lasts. A queue that cannot be read
	// counts as empty. What a later queue is given while it waits with a free slot is handled, and not interrupted.
	Strict bool

	Group string

	// Consumer names this worker among its group's. It must be unique among live workers; the default is (host, process, random).
	// What the last bearer of a fixed name still held when it crashed is left to the reclaimer, as that of any other is.
	Consumer string

	Handler Handler

	// Settled, when set, is told how each delivery ended, also of those that the handler never saw because they are meant for
	// another group. It is called from the worker's own goroutines, one call at a time for an entry, and must not block:
	// acknowledgements wait. Of a handler that was left behind it is told Unknown when that returns, after the end of Run.
	Settled func(*Message, Settlement)

	// Retried, when set, is told of each message whose handler failed and that is to be delivered again: how long after, and the
	// error. It is called as Settled is.
	Retried func(m *Message, delay time.Duration, err string)

	// Admit, when set, is asked before each read how many messages may be taken now, at most most. It waits until there is one,
	// and returns 0 when ctx ends. What is not admitted stays ready for others, and is no attempt. It is called from several
	// goroutines at once where there are several partitions or queues. What comes after a broken connection, because it was given
	// to this worker before, is not asked for. An error counts as one of the read.
	Admit func(ctx context.Context, most int) (int, error)

	// Observer is told what becomes of deliveries, and how long it takes. Nil: nobody is.
	Observer observe.Observer

	// Concurrency is how many messages are held at once: handlers that run, and acknowledgements under way. Default 16, at most
	// 10,000. An acknowledgement waits up to 5 ms for others while enough slots are free.
	Concurrency int

	// ShutdownTimeout is how long handlers may go on after Run's context is cancelled, before theirs is, too. Default 20s;
	// negative means not at all. Too low: work is cut short and done again elsewhere. Too high: deploys wait.
	ShutdownTimeout time.Duration

	// CancelGrace is how long Run then waits for handlers to return. What is not back by then stays pending for the reclaimer,
	// and the log says so. Default 2s.
	CancelGrace time.Duration

	// HandlerTimeout is how long a handler may take, where neither its message nor the policy says so (handler_timeout_ms): an
	// operator can give a group another limit without a new release of the program. Then its context is cancelled with
	// ErrHandlerTimeout, and the attempt fails with reason "handler_timeout" unless the handler returns nil all the same. Default
	// 0: no limit. At most ten years. Too low: work is cut short. Too high, or no limit: a handler that hangs keeps its message,
	// its slot and its key for so long.
	HandlerTimeout time.Duration

	// AbandonAfter is how long a handler may ignore its context after HandlerTimeout. Then it is abandoned: its delivery is
	// settled as failed and its slot goes to another message, but its goroutine lives on. The message may be delivered again, and
	// the next message of its key, while that goroutine goes on with its side effects. Default 10s.
	AbandonAfter time.Duration

	// MaxAbandoned is how many abandoned handlers may run beside those that have slots. Beyond it they keep their slots, and
	// Alive and Ready return an error. Default: Concurrency, at least 8. Negative: none may. At most 10,000.
	MaxAbandoned int

	// Block is how long one read waits at the server. Default 2s. It is no source of lateness.
	Block time.Duration

	// Logger may be nil: nothing is logged then.
	Logger *slog.Logger
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, DefaultShutdownTimeout)
	c.CancelGrace = cmp.Or(max(0, c.CancelGrace), DefaultCancelGrace)
	c.AbandonAfter = cmp.Or(max(0, c.AbandonAfter), DefaultAbandonAfter)
	c.MaxAbandoned = max(0, cmp.Or(c.MaxAbandoned, max(c.Concurrency, LeastMaxAbandoned)))
	c.Block = cmp.Or(max(0, c.Block), DefaultBlock)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Consumer == "" {
		host, _ := os.Hostname()
		c.Consumer = strings.ToLower(fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), ulid.Make()))
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
	if c.HandlerTimeout < 0 || c.HandlerTimeout > lua.MaxDelay {
		errs = append(errs, lua.Invalid("handler timeout", c.HandlerTimeout.String(), "must be between 0 and %s", lua.MaxDelay))
	}
	if c.MaxAbandoned > MaxConcurrency {
		errs = append(errs, lua.Invalid("max abandoned", fmt.Sprint(c.MaxAbandoned), "must be at most %d", MaxConcurrency))
	}
	if c.Consumer == lua.ReclaimConsumer {
		errs = append(errs, lua.Invalid("consumer", c.Consumer, "is the reclaimer's own name"))
	}
	return errors.Join(append(errs, lua.CheckPrefix(c.Prefix), c.validateQueues(), lua.CheckGroup(c.Group),
		lua.CheckConsumer(c.Consumer))...)
}

// WorkerStats counts what a worker did since it was made.
type WorkerStats struct {
	Delivered, Acknowledged, Retried, Dead, Released, Snoozed, Skipped, Cancelled, Lost uint64
	// TimedOut are handlers that used up their HandlerTimeout; Abandoned are those of them that ignored their contexts as well.
	TimedOut, Abandoned uint64
}

// Worker delivers the messages of one queue to one group's handler, at least once. It is safe for concurrent use; Run may be
// called once.
//
// Of a queue with partitions it serves each by a partitionWorker of its own; all share its slots.
type Worker struct {
	cfg WorkerConfig
	log *slog.Logger
	*pool
	line  *line         // the queue's place among others; nil = it is the only one
	peers []*Worker     // of several queues: those of the others
	state loop.Reporter // of reading the registry
	ran   atomic.Bool

	floods loop.Floods // lines about single messages

	look      chan struct{} // poked: the registry is to be read
	forgotten atomic.Bool   // the queue is to be registered again

	asked   sync.Mutex // by Alive
	watches pulse

	mu     sync.Mutex
	served []*partitionWorker // by partition
}

// NewWorker checks the configuration; all that is wrong with it is in the error. Redis is not touched before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	p := newPool(cfg.Concurrency, cfg.MaxAbandoned)
	if len(cfg.Queues) == 0 {
		w := newQueueWorker(cfg, cfg.Queue, p, nil)
		p.slots.wants = w.settleNow
		return w, nil
	}
	o := &order{strict: cfg.Strict}
	p.slots.order = o
	all := make([]*Worker, len(cfg.Queues))
	for i, q := range cfg.Queues {
		l := &line{rank: i}
		if !cfg.Strict {
			l.weight = float64(max(1, q.Weight))
		}
		o.lines = append(o.lines, l)
		all[i] = newQueueWorker(cfg, q.Queue, p, l)
	}
	p.slots.wants = func() {
		for _, w := range all {
			w.settleNow()
		}
	}
	all[0].peers = all[1:]
	return all[0], nil
}

// newQueueWorker returns the worker of one queue, which shares a pool with those of others.
func newQueueWorker(cfg WorkerConfig, queue string, p *pool, l *line) *Worker {
	cfg.Queue = queue
	w := &Worker{cfg: cfg, pool: p, line: l, look: make(chan struct{}, 1)}
	w.log = cfg.Logger.With(slog.String("queue", cfg.Queue), slog.String("group", cfg.Group))
	w.state = loop.Reporter{Log: w.log, Activity: "reading the number of partitions"}
	w.open(0)
	return w
}

// settleNow has all partitions settle at once what waits for more.
func (w *Worker) settleNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.served {
		p.settle.poke()
	}
}

// Consumer returns the worker's name within its group.
func (w *Worker) Consumer() string { return w.cfg.Consumer }

// Stats returns the counts so far.
func (w *Worker) Stats() WorkerStats {
	var sum WorkerStats
	for _, one := range w.all() {
		one.addTo(&sum)
	}
	return sum
}

func (w *Worker) addTo(sum *WorkerStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.served {
		l.addTo(sum)
	}
}

// all returns the workers of all queues.
func (w *Worker) all() []*Worker { return append([]*Worker{w}, w.peers...) }

// Ready returns why the worker does not do its work now, by partition; nil when nothing fails. It does not touch Redis.
func (w *Worker) Ready() error {
	if !w.ran.Load() {
		return errors.New("the worker has not begun to read")
	}
	errs := []error{w.pool.abandoned.trouble()}
	for _, one := range w.all() {
		errs = append(errs, one.trouble())
	}
	return errors.Join(errs...)
}

func (w *Worker) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, l := range w.served {
		if why := l.state.Trouble(); why != "" {
			errs = append(errs, fmt.Errorf("%s: the worker is failing: %s", lua.PartitionName(w.cfg.Queue, l.partition), why))
		}
	}
	return errors.Join(errs...)
}

// ErrAbandoned: handlers ignored their cancelled context; their entries stay pending until the visibility timeout.
var ErrAbandoned = errors.New("handlers did not return: their entries stay pending")

// Run reads, handles and settles until ctx is cancelled, then stops reading, lets handlers finish, releases what never started,
// and returns nil: a clean stop leaves nothing pending and burns no attempt. It goes on through outages of Redis for ever.
// It returns ErrAbandoned when handlers had to be left behind. It does not wait for handlers that were abandoned before the stop
// (see AbandonAfter), and no error tells of them: their deliveries are settled. Their goroutines may outlive it.
func (w *Worker) Run(ctx context.Context) error {
	if w.ran.Swap(true) {
		return errors.New("worker: Run may be called once")
	}
	errs := make([]error, len(w.peers)+1)
	var running sync.WaitGroup
	for i, one := range w.all() {
		running.Go(func() { errs[i] = one.serve(ctx) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// serve is Run for one queue.
func (w *Worker) serve(ctx context.Context) error {
	defer w.floods.Close()
	var running sync.WaitGroup
	var left atomic.Int64
	start := func(l *partitionWorker) { running.Go(func() { left.Add(int64(l.run(ctx))) }) }
	start(w.served[0])
	w.watch(ctx, start)
	running.Wait()
	if n := left.Load(); n > 0 {
		return fmt.Errorf("stop %s/%s: %d of them: %w", w.cfg.Queue, w.cfg.Group, n, ErrAbandoned)
	}
	return nil
}
