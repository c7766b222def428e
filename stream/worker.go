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

// WorkerConfig configures a Worker. Client, Blocking, Group, Handler, and Queue or Queues are required.
type WorkerConfig struct {
	// Client sends everything except the blocking read. Whoever made it closes it.
	Client rueidis.Client
	// Blocking sends the blocking read: a client made with AlwaysPipelining, so that a stop interrupts it.
	Blocking rueidis.Client

	Prefix string // of all keys; default lua.DefaultPrefix
	Queue  string

	// Policies reads the policies of this prefix. Workers of one process may share it: on a cluster, a worker that starts
	// while the master of the defaults is away then uses the defaults that another worker has read. Default: a new one.
	Policies *PolicyReader

	// Queues, instead of Queue, names several queues that share the slots. While several have a backlog, each gets its
	// share of deliveries by weight; a queue without a backlog leaves its share to the others. Give at least two slots
	// for each partition of them: with fewer, new messages in an idle queue may be noticed up to 100 ms late.
	Queues []WorkerQueue

	// Strict serves Queues in their order: a queue is read only while none before it has a backlog. The last ones are
	// not served at all while the first ones are never empty. A queue that cannot be read counts as empty. Messages
	// that a later queue got while a slot was free are handled without interruption.
	Strict bool

	Group string

	// Consumer is the name of this worker in its group. It must be unique among live workers. Default: host, process
	// and a random part. Entries that an earlier worker of a fixed name held when it crashed are left to the reclaimer,
	// like those of any other.
	Consumer string

	Handler Handler

	// Settled, when set, is called with the settlement of each delivery, including retries of other groups, which the
	// handler never sees. It is called from the worker's own goroutines, one call at a time for an entry. It must not
	// block, because acknowledgements wait for it. For a handler that did not return before the end of Run it is called
	// with Unknown when the handler returns.
	Settled func(*Message, Settlement)

	// Retried, when set, is called for each message whose handler failed and that will be delivered again, with the
	// delay and the error. It is called like Settled.
	Retried func(m *Message, delay time.Duration, err string)

	// Admit, when set, is called before each read and returns how many messages may be taken now, no more than limit. It
	// waits until that is at least one, and returns 0 when ctx ends. Messages that are not admitted stay ready for
	// other workers, without counting an attempt. With several partitions or queues, several goroutines call it at
	// once. Entries that this worker was given before its connection broke do not need its consent. An error counts as
	// an error of the read.
	Admit func(ctx context.Context, limit int) (int, error)

	// Observer gets the outcomes and durations of deliveries. Default: nil, no observer.
	Observer observe.Observer

	// Concurrency is the greatest number of messages held at once: running handlers, and acknowledgements in flight.
	// Default 16, at most 10,000. An acknowledgement waits up to 5 ms for others while enough slots are free.
	Concurrency int

	// ShutdownTimeout is how long handlers may continue after Run's context is cancelled; then their contexts are
	// cancelled. Default 20s; negative means not at all. Too low: work is cut short and done again elsewhere. Too high:
	// deploys wait.
	ShutdownTimeout time.Duration

	// CancelGrace is how long Run then waits for handlers to return. Entries of the others stay pending for the
	// reclaimer, which is logged. Default 2s.
	CancelGrace time.Duration

	// HandlerTimeout is the time limit of a handler when neither its message nor the policy (handler_timeout_ms) sets
	// one. So an operator can change the limit of a group without a new release of the program. After it the handler's
	// context is cancelled with ErrHandlerTimeout. The attempt fails with reason "handler_timeout" unless the handler
	// still returns nil. Default 0: no limit. At most ten years. Too low: work is cut short. Too high, or no limit: a
	// handler that hangs keeps its message, its slot and its key for that long.
	HandlerTimeout time.Duration

	// AbandonAfter is how long a handler may ignore its context after HandlerTimeout before it is abandoned. Then its
	// delivery is settled as failed and its slot goes to another message, but its goroutine lives on. While that
	// goroutine continues its side effects, the message may be delivered again, and the next message of its key may be
	// delivered. Default 10s.
	AbandonAfter time.Duration

	// MaxAbandoned is the greatest number of abandoned handlers without a slot. Beyond it they keep their slots, and
	// Alive and Ready return an error. Default: Concurrency, at least 8. Negative: 0. At most 10,000.
	MaxAbandoned int

	// Block is the longest wait of one read at the server. Default 2s. It does not delay messages.
	Block time.Duration

	// Logger gets the worker's log lines. Default: nil, nothing is logged.
	Logger *slog.Logger
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Policies = cmp.Or(c.Policies, NewPolicyReader(c.Prefix))
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, DefaultShutdownTimeout)
	c.CancelGrace = cmp.Or(c.CancelGrace, DefaultCancelGrace)
	c.AbandonAfter = cmp.Or(c.AbandonAfter, DefaultAbandonAfter)
	c.MaxAbandoned = max(0, cmp.Or(c.MaxAbandoned, max(c.Concurrency, LeastMaxAbandoned)))
	c.Block = cmp.Or(c.Block, DefaultBlock)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Consumer == "" {
		host, _ := os.Hostname()
		c.Consumer = strings.ToLower(fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), ulid.Make()))
	}
	return c
}

func (c WorkerConfig) validate() error {
	errs := []error{
		lua.Required("redis", c.Client != nil && c.Blocking != nil),
		lua.CheckPrefix(c.Prefix),
		c.validateQueues(),
		lua.CheckGroup(c.Group),
		lua.CheckConsumer(c.Consumer),
		lua.Required("handler", c.Handler != nil),
		lua.Between("concurrency", c.Concurrency, 1, MaxConcurrency),
		lua.AtLeast("cancel grace", c.CancelGrace, 0),
		lua.Between("handler timeout", c.HandlerTimeout, 0, lua.MaxDelay),
		lua.AtLeast("abandon after", c.AbandonAfter, 0),
		lua.Between("max abandoned", c.MaxAbandoned, 0, MaxConcurrency),
		lua.AtLeast("block", c.Block, 0),
	}
	if c.Consumer == lua.ReclaimConsumer {
		errs = append(errs, lua.Invalid("consumer", c.Consumer, "is the reclaimer's own name"))
	}
	return lua.Faults("worker", errs...)
}

// WorkerStats counts the outcomes of a worker's deliveries since it was made.
type WorkerStats struct {
	Delivered, Acknowledged, Retried, Dead, Released, Snoozed, Skipped, Cancelled, Lost uint64
	// TimedOut counts handlers that used up their HandlerTimeout; Abandoned counts those that also ignored their
	// contexts.
	TimedOut, Abandoned uint64
}

// Worker delivers the messages of one or several queues to one group's handler, at least once. It is safe for
// concurrent use; Run may be called once.
//
// Each partition of a queue has its own partitionWorker; all of them share the slots.
type Worker struct {
	cfg WorkerConfig
	log *slog.Logger
	*pool
	line  *line         // the queue's place among the others; nil = it is the only queue
	peers []*Worker     // with several queues, in the first one's worker: the workers of the others
	state loop.Reporter // of reading the registry
	ran   atomic.Bool

	floods loop.Floods // lines about single messages

	look      chan struct{} // poked: read the registry
	forgotten atomic.Bool   // register the queue again
	counted   chan struct{} // closed after the first successful read of the partition counts

	asked   sync.Mutex // held by Alive
	watches pulse

	mu     sync.Mutex
	served []*partitionWorker // by partition
}

// NewWorker checks the configuration; the error names all its faults. It does not touch Redis before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
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

// newQueueWorker returns the worker of one queue. It shares a pool with the workers of other queues.
func newQueueWorker(cfg WorkerConfig, queue string, p *pool, l *line) *Worker {
	cfg.Queue = queue
	w := &Worker{cfg: cfg, pool: p, line: l, look: make(chan struct{}, 1), counted: make(chan struct{})}
	w.log = cfg.Logger.With(slog.String("queue", cfg.Queue), slog.String("group", cfg.Group))
	w.state = loop.Reporter{Log: w.log, Activity: "reading the number of partitions"}
	w.open(0)
	return w
}

// settleNow makes all partitions settle at once the acknowledgements that wait for more.
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

// Ready returns an error, by partition, if the worker cannot do its work now. It does not touch Redis.
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

// ErrAbandoned: handlers ignored their cancelled contexts; their entries stay pending until the visibility timeout.
var ErrAbandoned = errors.New("handlers did not return: their entries stay pending")

// Run reads, handles and settles until ctx is cancelled. Then it stops reading, lets handlers finish, releases entries
// that no handler has begun, and returns nil: a clean stop leaves nothing pending and burns no attempt. It never gives
// up in an outage of Redis. It returns ErrAbandoned if handlers did not return in time. It does not wait for handlers
// that were abandoned before the stop (see AbandonAfter), and returns no error for them, because their deliveries are
// settled. Their goroutines may outlive it.
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
