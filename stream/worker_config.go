package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/policy"
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

	// Policies reads the policies of this prefix. Workers of one process may share it. On a cluster the master of the
	// defaults may be away when a worker starts: it then uses the defaults that another worker has read. Default: a new
	// reader.
	Policies *policy.Reader

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
	// and a random part. If a worker crashes, a new worker of the same name does not take over its entries: the
	// reclaimer does, as for any other worker.
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

	// Admit, when set, is called before each read and returns how many messages may be taken now, no more than limit.
	// It waits until the number is at least one, and returns 0 when ctx ends. Messages that are not admitted stay ready
	// for other workers, without counting an attempt. With several partitions or queues, several goroutines call it at
	// once. Admit is not asked about entries that this worker was given before its connection broke. An error counts as
	// an error of the read.
	Admit func(ctx context.Context, limit int) (int, error)

	// GroupRate limits how many handlers all workers of the group start for each queue, by the clock of the server. Its
	// bucket is in Redis, so all workers of the group should have the same GroupRate and GroupBurst. A message is read
	// only shortly before the rate allows its handler. Until then it stays ready, and is held by no worker. A message
	// that waits for more than 5s after it was read is released. Default "": no limit.
	GroupRate lua.Rate
	// GroupBurst is the number of handlers that may start at once after a quiet time: 1 to 1,000,000. Default: the
	// handlers of a tenth of a second, at least 1.
	GroupBurst int

	// Stopping, when set, is called once, on a goroutine of its own, when Run begins to stop. Handlers that wait for
	// further messages need not wait any longer then.
	Stopping func()

	// IdleSlots, when set, is called with the number of slots that a partition without work takes while it waits for
	// messages at the server. Afterwards it is called with the negative of this number. It is called only if the worker
	// has several partitions. Several goroutines may call it at once. It must not block. If all other slots have
	// handlers that wait for further messages, these handlers need not wait any longer.
	IdleSlots func(n int)

	// Observer gets the outcomes and durations of deliveries. Default: nil, no observer.
	Observer observe.Observer

	// Concurrency is the greatest number of messages held at once: running handlers, and acknowledgements in flight.
	// Default 16, at most 10,000. An acknowledgement waits up to 5 ms for others while enough slots are free.
	Concurrency int

	// ShutdownTimeout is how long handlers may continue after Run's context is cancelled; then their contexts are
	// cancelled. Default 20s; a negative value cancels them at once. Too low: work is cut short and done again
	// elsewhere. Too high: deploys wait.
	ShutdownTimeout time.Duration

	// CancelGrace is how long Run waits for handlers to return after it has cancelled their contexts. Entries of
	// handlers that have not returned by then stay pending for the reclaimer, and the worker logs a warning. Default
	// 2s.
	CancelGrace time.Duration

	// HandlerTimeout is the time limit of a handler if neither its message nor the policy (handler_timeout_ms) sets
	// one. So an operator can change the limit of a group without a new release of the program. After that time the
	// handler's context is cancelled with ErrHandlerTimeout. The attempt fails with reason "handler_timeout" unless the
	// handler still returns nil. Default 0: no limit. At most ten years. Too low: work is cut short. Too high, or no
	// limit: a handler that hangs keeps its message, its slot and its key for that long.
	HandlerTimeout time.Duration

	// AbandonAfter is how long a handler may ignore its context after HandlerTimeout before it is abandoned. Then its
	// delivery is settled as failed and its slot goes to another message, but its goroutine lives on. While that
	// goroutine continues its side effects, the message may be delivered again, and the next message of its key may be
	// delivered. Default 10s.
	AbandonAfter time.Duration

	// MaxAbandoned is the greatest number of abandoned handlers that give up their slots. Further abandoned handlers
	// keep their slots, and Alive and Ready return an error. Default: Concurrency, at least 8. Negative: 0. At most
	// 10,000.
	MaxAbandoned int

	// Block is the longest wait of one read at the server. Default 2s. It does not delay messages.
	Block time.Duration

	// Logger gets the worker's log lines. Default: nil, nothing is logged.
	Logger *slog.Logger
}

// MaxQueues is the greatest number of queues of one worker.
const MaxQueues = 100

// WorkerQueue is one of several queues of a worker.
type WorkerQueue struct {
	Queue string
	// Weight is the queue's share of deliveries while other queues have a backlog, too: with weights 3 and 1 the first
	// queue gets three of four deliveries. Default 1, at most 1,000. Must be 0 with Strict.
	Weight int
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Policies = cmp.Or(c.Policies, policy.NewReader(c.Prefix))
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
		c.checkGroupRate(),
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

func (c WorkerConfig) validateQueues() error {
	if len(c.Queues) == 0 {
		errs := []error{lua.CheckQueue(c.Queue)}
		if c.Strict {
			errs = append(errs, lua.Invalid("strict", "true", "needs several queues"))
		}
		return errors.Join(errs...)
	}
	var errs []error
	if c.Queue != "" {
		errs = append(errs, lua.Invalid("queue", c.Queue, "must be empty when Queues are given"))
	}
	if len(c.Queues) > MaxQueues {
		errs = append(errs, lua.Invalid("queues", fmt.Sprint(len(c.Queues)), "must be at most %d", MaxQueues))
	}
	seen := map[string]bool{}
	for _, q := range c.Queues {
		errs = append(errs, lua.CheckQueue(q.Queue))
		if seen[q.Queue] {
			errs = append(errs, lua.Invalid("queues", q.Queue, "must be named once"))
		}
		seen[q.Queue] = true
		switch {
		case c.Strict && q.Weight != 0:
			errs = append(errs, lua.Invalid("weight", fmt.Sprint(q.Weight), "must be 0 where the order is strict"))
		case q.Weight < 0 || q.Weight > 1000:
			errs = append(errs, lua.Invalid("weight", fmt.Sprint(q.Weight), "must be between 1 and 1000"))
		}
	}
	return errors.Join(errs...)
}
