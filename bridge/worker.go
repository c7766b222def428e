package bridge

import (
	"context"
	"log/slog"
	"time"

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
	Retried      = stream.Retried      // scheduled for another attempt
	Dead         = stream.Dead         // dead-lettered
	Released     = stream.Released     // scheduled again at once, with the same attempt
	Snoozed      = stream.Snoozed      // scheduled again after a delay, with the same attempt
	Skipped      = stream.Skipped      // meant for another group: acknowledged without a handler
	Cancelled    = stream.Cancelled    // the message was cancelled meanwhile: done for this group
	Lost         = stream.Lost         // the entry had left this worker before; the handler's result has no effect
	Unknown      = stream.Unknown      // the worker was stopped before Redis answered, or a reply was lost
	Stuck        = stream.Stuck        // the dead-letter stream refused it: it stays pending, and is reclaimed later
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

// WorkerConfig configures a Worker. Redis, Queue or Queues, Group and Handler are required. The visibility timeout and
// the retries are not set here: they belong to the policy of the queue, which is stored in Redis.
type WorkerConfig struct {
	Redis  *Redis
	Prefix string // of all keys; default "duestream"
	Queue  string
	// Queues, instead of Queue, are several queues that share the slots. While more than one has a backlog, each gets
	// deliveries by its weight. A queue without a backlog leaves its share to the others. Give at least two slots for
	// each partition of these queues: with fewer it takes up to 100 ms to notice a message.
	Queues []WorkerQueue
	// Strict serves Queues in their order: a queue is read only while no queue before it has a backlog. So a queue
	// gets nothing for as long as those before it are never empty. A queue that cannot be read counts as empty. A
	// message that a later queue is given while it waits with a free slot is handled, and not interrupted.
	Strict   bool
	Group    string // created at the beginning of the queue's streams if it does not exist
	Consumer string // unique among live workers; default: host, process, random
	Handler  Handler

	// Settled is called when a delivery has ended. It must not block; nil = no call.
	Settled func(*Message, Settlement)
	// Retried is called when a delivery is to be retried, with the delay and the error. It must not block; nil = no
	// call.
	Retried func(m *Message, delay time.Duration, err string)

	// Admit is called before each read and returns how many messages may be read now, at most limit: for a rate limit
	// of the worker's own, say. It blocks until it can admit one, and returns 0 when ctx ends. Messages that are not
	// admitted stay ready for others; no attempt is counted. With several partitions or queues it is called
	// concurrently. It is not called for messages that this worker reads again after a broken connection. An error of
	// Admit is handled like an error of the read. nil = no limit.
	Admit func(ctx context.Context, limit int) (int, error)

	// Concurrency is how many handlers run at once, for all queues together; each holds one message. Default 16.
	Concurrency int
	// ShutdownTimeout is how long handlers may go on after Run's context is cancelled. Default 20s; negative = no time.
	ShutdownTimeout time.Duration
	// CancelGrace is how long Run then waits for handlers whose context it has cancelled. Default 2s.
	CancelGrace time.Duration

	// HandlerTimeout is how long a handler may take if neither its message nor the policy of its queue sets a limit
	// (handler_timeout_ms). With the policy an operator can change the limit without a new release of the program.
	// When the time is up the handler's context is cancelled with ErrHandlerTimeout, and the attempt fails with
	// reason "handler_timeout", unless the handler returns nil all the same. Default 0: no limit. Then a handler that
	// hangs keeps its message, its slot and its key for ever. A handler that ignores its context when its delivery is
	// lost or its message is cancelled keeps its slot until it returns, or until the limit and AbandonAfter have
	// passed. So set a limit if handlers may hang.
	HandlerTimeout time.Duration
	// AbandonAfter is how long a handler may ignore its context after HandlerTimeout. Then it is abandoned: the
	// delivery is settled as failed, and its slot goes to another message. The handler's goroutine lives on. Its side
	// effects may overlap with the next attempt, or with the next message of the same key. The log shows its stack.
	// Default 10s.
	AbandonAfter time.Duration
	// MaxAbandoned is how many abandoned handlers may run beside those with slots. Further ones keep their slots, and
	// Alive and Ready return an error: restart the process. Default: Concurrency, at least 8. Negative: none.
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
	return stream.NewWorker(stream.WorkerConfig{
		Client: client, Blocking: blocking,
		Prefix: cfg.Prefix, Queue: cfg.Queue, Queues: cfg.Queues, Strict: cfg.Strict, Group: cfg.Group,
		Policies: cfg.Redis.policyReader(withPrefix(cfg.Prefix)), Observer: cfg.Observer,
		Consumer: cfg.Consumer, Handler: cfg.Handler, Settled: cfg.Settled, Retried: cfg.Retried, Admit: cfg.Admit,
		Concurrency:     cfg.Concurrency,
		ShutdownTimeout: cfg.ShutdownTimeout, CancelGrace: cfg.CancelGrace, Logger: cfg.Logger,
		HandlerTimeout: cfg.HandlerTimeout, AbandonAfter: cfg.AbandonAfter, MaxAbandoned: cfg.MaxAbandoned,
	})
}

// CreateGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless it exists. A
// worker does so by itself. Call it if the group must get every message from now on, before its first worker runs.
func CreateGroup(ctx context.Context, r *Redis, prefix, queue, group string) (created bool, err error) {
	return stream.EnsureGroup(ctx, r.Client, withPrefix(prefix), queue, group)
}
