package bridge

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Message is one delivery of a message to a handler: see [stream.Message].
type Message = stream.Message

// Handler does the work of one message, and returns nil when it is done: see [stream.Handler].
type Handler = stream.Handler

// Settlement is how a delivery ended for a worker: see [stream.Settlement] and WorkerConfig.Settled.
type Settlement = stream.Settlement

// Settlements. Of all workers that ever held an entry for a group, at most one gets one of the first seven.
const (
	Acknowledged = stream.Acknowledged // the handler returned nil: done for this group
	Retried      = stream.Retried      // the message is scheduled for another attempt
	Dead         = stream.Dead         // the message is a dead letter
	Released     = stream.Released     // the message is scheduled again at once, with the same attempt
	Snoozed      = stream.Snoozed      // the message is scheduled again after a delay, with the same attempt
	Skipped      = stream.Skipped      // the entry was for another group: acknowledged without a handler
	Cancelled    = stream.Cancelled    // the message was cancelled meanwhile: it is done for this group
	Lost         = stream.Lost         // the worker did not hold the entry any more; the handler's result has no effect
	Unknown      = stream.Unknown      // the worker was stopped before Redis answered, or a reply was lost
	Stuck        = stream.Stuck        // the dead-letter stream refused the entry: it stays pending, and is reclaimed
)

// WorkerStats counts the settlements of a worker since it was made: see [stream.WorkerStats].
type WorkerStats = stream.WorkerStats

// RetryAfter returns an error that retries the message after d instead of the policy's delay.
func RetryAfter(d time.Duration, err error) error { return stream.RetryAfter(d, err) }

// DeadLetter returns an error that dead-letters the message at once.
func DeadLetter(err error) error { return stream.DeadLetter(err) }

// Snooze returns an error that delivers the message again after d, with the same attempt. It is for work that cannot
// be done yet and has not failed. One snooze more than the policy's MaxSnoozes (default 1,000) dead-letters the
// message with reason "max_snoozes".
func Snooze(d time.Duration) error { return stream.Snooze(d) }

// Release returns an error that gives the message back: it is delivered again at once, with the same attempt. A worker
// that is about to stop uses it for work that it has not begun.
func Release(err error) error { return stream.Release(err) }

// Outcome is the action that a handler asked for with the error that it returned: see [stream.Outcome].
type Outcome = stream.Outcome

// Action is the next step of a message after its handler returned: see [stream.Action].
type Action = stream.Action

// Actions, each with the return value that asks for it.
const (
	ActionAcknowledge = stream.ActionAcknowledge // nil
	ActionRetry       = stream.ActionRetry       // any other error, and RetryAfter
	ActionDeadLetter  = stream.ActionDeadLetter  // DeadLetter
	ActionSnooze      = stream.ActionSnooze      // Snooze
	ActionRelease     = stream.ActionRelease     // Release
)

// OutcomeOf returns the outcome of a message whose handler returned err. It is for tests of handlers.
func OutcomeOf(err error) Outcome { return stream.OutcomeOf(err) }

// WorkerQueue is one queue of a worker that serves several: see [stream.WorkerQueue].
type WorkerQueue = stream.WorkerQueue

// WorkerConfig configures a Worker. Redis, Group, and Handler or Mux are required; with Handler also Queue or Queues.
// The visibility timeout and the retries are not set here: they belong to the policy of the queue, which is stored in
// Redis.
type WorkerConfig struct {
	Redis  *Redis
	Prefix string // prefix of all Redis keys; default "duestream"
	Queue  string
	// Queues replaces Queue if the worker serves several queues. They share the slots. While more than one queue has a
	// backlog, each gets deliveries by its weight. A queue without a backlog leaves its share to the others. Set
	// Concurrency to at least two for each partition of these queues. With less, the worker may take up to 100 ms to
	// notice a message.
	Queues []WorkerQueue
	// Strict serves Queues in their order: a queue is read only while no queue before it has a backlog. So a queue gets
	// no deliveries while a queue before it always has a backlog. A queue that cannot be read counts as empty. When a
	// queue gets a message, handlers of later queues are not interrupted.
	Strict   bool
	Group    string // created at the beginning of the queue's streams if it does not exist
	Consumer string // unique among live workers; default: host, process ID and a random part
	Handler  Handler
	// Mux replaces Handler if the worker handles several kinds of messages. Without Queue and Queues, the worker serves
	// the queues of its kinds, with equal weights. Queue or Queues, if set, must name exactly these queues.
	Mux *Mux

	// Settled is called when a delivery has ended. It must not block; nil = no call.
	Settled func(*Message, Settlement)
	// Retried is called when a delivery will be retried, with the delay and the text of the error. It must not block;
	// nil = no call.
	Retried func(m *Message, delay time.Duration, err string)

	// Admit is called before each read and returns how many messages may be read now, at most limit. It can enforce a
	// rate limit of this worker, for example. Admit blocks until it can admit one message, and returns 0 when ctx ends.
	// Messages that are not admitted stay ready for other workers, and no attempt is counted. With several partitions
	// or queues Admit is called concurrently. It is not called for messages that this worker reads again after a broken
	// connection. An error of Admit is handled like an error of the read. nil = no limit.
	Admit func(ctx context.Context, limit int) (int, error)

	// GroupRate limits how many handlers all workers of the group start for each of their queues, by the clock of the
	// server, for example "10/s". Give all workers of the group the same GroupRate and GroupBurst. A worker reads a
	// message only shortly before the rate allows its handler. Until then the message stays ready for any worker, and
	// no attempt is counted. If a message would wait for more than 5s after it was read, the worker releases it. The
	// rate counts only handlers, also those of retries. Default: no limit. To limit how many messages become ready, set
	// the policy's Rate.
	GroupRate Rate
	// GroupBurst is the number of handlers that may start at once after a quiet time: 1 to 1,000,000. Default: the
	// handlers of a tenth of a second, at least 1.
	GroupBurst int

	// Concurrency is the number of slots: how many handlers run at once, for all queues together. Each handler holds
	// one message. Default 16.
	Concurrency int
	// ShutdownTimeout is how long handlers may go on after Run's context is cancelled. After that time Run cancels the
	// contexts of the handlers. Default 20s; negative = no time.
	ShutdownTimeout time.Duration
	// CancelGrace is how long Run waits, after ShutdownTimeout, for handlers whose context it has cancelled. Default
	// 2s.
	CancelGrace time.Duration

	// HandlerTimeout is how long a handler may take if neither its message nor the policy of its queue sets a limit
	// (handler_timeout_ms). With the policy an operator can change the limit without a new release of the program.
	// After this time the handler's context is cancelled with ErrHandlerTimeout. The attempt then fails with reason
	// "handler_timeout", unless the handler returns nil all the same.
	//
	// Default 0: no limit. Without a limit, a handler that hangs keeps its message, its slot and its ordering key for
	// ever. If the delivery is lost or the message is cancelled, and the handler ignores its context, it keeps its slot
	// until it returns, or until the limit and AbandonAfter have passed. So set a limit if handlers may hang.
	HandlerTimeout time.Duration
	// AbandonAfter is how long a handler may ignore its context after HandlerTimeout. After that time the worker
	// abandons the handler: it settles the delivery as failed, and gives the slot to another message. The handler's
	// goroutine still runs. Its side effects may overlap with the next attempt, or with the next message of the same
	// ordering key. The log shows its stack. Default 10s.
	AbandonAfter time.Duration
	// MaxAbandoned is how many abandoned handlers may run in addition to the handlers that have slots. Any further
	// handler that ignores its context keeps its slot, and Alive and Ready return an error, so that the process is
	// restarted. Default: Concurrency, at least 8. Negative = no handler is abandoned.
	MaxAbandoned int

	Observer Observer     // gets events and durations of deliveries; nil = none
	Logger   *slog.Logger // nil = discard
}

// Worker delivers the messages of queues to the handler of one group, at least once: see [stream.Worker].
type Worker = stream.Worker

// NewWorker checks the configuration; the error names all its faults, each an *InvalidError. Redis is not touched
// before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	client, blocking := cfg.Redis.observed(cfg.Observer)
	batches, muxFault := cfg.useMux()
	worker, err := stream.NewWorker(stream.WorkerConfig{
		Client: client, Blocking: blocking,
		Prefix: cfg.Prefix, Queue: cfg.Queue, Queues: cfg.Queues, Strict: cfg.Strict, Group: cfg.Group,
		Policies: cfg.Redis.policyReader(withPrefix(cfg.Prefix)), Observer: cfg.Observer,
		Consumer: cfg.Consumer, Handler: cfg.Handler, Settled: cfg.Settled, Retried: cfg.Retried, Admit: cfg.Admit,
		Concurrency:     cfg.Concurrency,
		ShutdownTimeout: cfg.ShutdownTimeout, CancelGrace: cfg.CancelGrace, Logger: cfg.Logger,
		HandlerTimeout: cfg.HandlerTimeout, AbandonAfter: cfg.AbandonAfter, MaxAbandoned: cfg.MaxAbandoned,
		Stopping: batches.stop, IdleSlots: batches.idleSlots, GroupRate: cfg.GroupRate, GroupBurst: cfg.GroupBurst,
	})
	if muxFault != nil {
		return nil, lua.Faults("worker", muxFault, errors.Unwrap(err)) // stream's error begins with "worker" already
	}
	return worker, err
}

// useMux sets the handler and the queues of the mux. It returns the batches of the worker; without a mux it has none.
// After a fault it sets a handler that is never called, so that stream.NewWorker reports the other faults of the
// configuration.
func (c *WorkerConfig) useMux() (batches *workerBatches, fault error) {
	if c.Mux == nil {
		return &workerBatches{}, nil
	}
	slots := max(0, cmp.Or(c.Concurrency, stream.DefaultConcurrency))
	handler, batches, err := c.Mux.handlerFor(slots)
	err = errors.Join(err, c.useQueues(c.Mux.Queues(), err == nil), c.Mux.checkWorker(slots, c.HandlerTimeout))
	if c.Handler != nil {
		err = errors.Join(err, lua.Invalid("handler", "", "must be nil when there is a mux"))
	}
	if c.Handler = handler; handler == nil {
		c.Handler = func(context.Context, *Message) error { return nil }
		return &workerBatches{}, err
	}
	return batches, err
}

// useQueues sets the queues of the mux if the configuration names none. Otherwise both must name the same queues,
// because a worker could only snooze the messages of another queue. complete is false if the mux is faulty and may lack
// queues.
func (c *WorkerConfig) useQueues(ofMux []string, complete bool) error {
	if c.Queue == "" && len(c.Queues) == 0 {
		if c.Strict && len(ofMux) > 1 {
			return lua.Invalid("strict", "true", "needs Queues: a mux has no order")
		}
		for _, queue := range ofMux {
			c.Queues = append(c.Queues, WorkerQueue{Queue: queue})
		}
		if len(ofMux) == 1 {
			c.Queue, c.Queues = ofMux[0], nil
		}
		return nil
	}
	var faults []error
	for _, queue := range ofMux {
		isServed := func(q WorkerQueue) bool { return q.Queue == queue }
		if queue != c.Queue && !slices.ContainsFunc(c.Queues, isServed) {
			faults = append(faults, lua.Invalid("queues", queue, "has a kind in the mux, and must be among the queues"))
		}
	}
	for _, q := range slices.Concat(c.Queues, []WorkerQueue{{Queue: c.Queue}}) {
		if complete && q.Queue != "" && !slices.Contains(ofMux, q.Queue) {
			faults = append(faults, lua.Invalid("queues", q.Queue, "has no kind in the mux"))
		}
	}
	return errors.Join(faults...)
}

// CreateGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless the group
// exists. A worker also creates its group. Call CreateGroup if the group must get every message from now on although
// its first worker starts later.
func CreateGroup(ctx context.Context, r *Redis, prefix, queue, group string) (created bool, err error) {
	return stream.EnsureGroup(ctx, r.Client, withPrefix(prefix), queue, group)
}
