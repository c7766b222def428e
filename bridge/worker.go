package bridge

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/stream"
)

// Message is one delivery of a message to a handler. Lateness is how long after its due time it became ready.
//
//	type Message struct {
//		ID          string // of the message; the entry ID where an entry of another program has none
//		Payload     []byte
//		Headers     map[string]string // nil when there are none
//		Attempt     int               // from 1
//		Queue       string
//		Group       string
//		Consumer    string
//		Partition   int       // of the queue; entry IDs are unique within one partition
//		EntryID     string    // of the stream entry
//		Due         time.Time // zero when the entry does not say
//		MaxAttempts int       // of the message itself; 0 = by policy
//		Expires     time.Time // zero = never
//		For         string    // group that a retry is for; empty = every group
//		Error       string    // of the last failed attempt
//		// Extra holds the fields that this version does not know, as they came, and those that handlers rarely need
//		// (docs/PROTOCOL.md lists them): "first_due_ms", "last_trace", …
//		Extra map[string]string
//		// Trace is the traceparent of this attempt. A handler may set it; it is in Extra["last_trace"] of the next
//		// attempt, or of the dead letter. Package bridge/tracing does so. Anything but a traceparent is dropped.
//		Trace string
//	}
//
//	func (*Message) Lateness() time.Duration
type Message = stream.Message

// Handler does the work of one message: nil acknowledges it, an error has it delivered again by policy, see also RetryAfter,
// DeadLetter, Snooze and Release. Messages are delivered at least once.
//
//	type Handler func(ctx context.Context, m *Message) error
type Handler = stream.Handler

// Settlement says how a delivery left a worker's hands: see WorkerConfig.Settled.
//
//	type Settlement string
type Settlement = stream.Settlement

// Settlements. Of all who ever held an entry for a group, at most one is told one of the first seven.
const (
	Acknowledged = stream.Acknowledged // the handler returned nil: done for this group
	Retried      = stream.Retried      // scheduled for another attempt
	Dead         = stream.Dead         // dead-lettered
	Released     = stream.Released     // scheduled again at once, with the same attempt
	Snoozed      = stream.Snoozed      // scheduled again after a delay, with the same attempt
	Skipped      = stream.Skipped      // it was meant for another group, and acknowledged unseen
	Cancelled    = stream.Cancelled    // somebody cancelled the message meanwhile: done for this group
	Lost         = stream.Lost         // somebody else had taken it before; what the handler returned has no effect
	Unknown      = stream.Unknown      // nobody can tell here: the worker was stopped before Redis answered, or a reply was lost
	Stuck        = stream.Stuck        // the stream of dead letters refused it: it stays pending, and is reclaimed later
)

// WorkerStats counts what a worker did since it was made.
//
//	type WorkerStats struct {
//		Delivered, Acknowledged, Retried, Dead, Released, Snoozed, Skipped, Cancelled, Lost uint64
//		// TimedOut are handlers that used up their HandlerTimeout; Abandoned are those of them that ignored their
//		// contexts as well.
//		TimedOut, Abandoned uint64
//	}
type WorkerStats = stream.WorkerStats

// RetryAfter returns an error that has the message delivered again after d instead of the policy's delay.
func RetryAfter(d time.Duration, err error) error { return stream.RetryAfter(d, err) }

// DeadLetter returns an error that has the message dead-lettered at once.
func DeadLetter(err error) error { return stream.DeadLetter(err) }

// Snooze returns an error that has the message delivered again after d, with the same attempt: it is no failure, but not to be
// done yet. After as many as the policy's MaxSnoozes (1,000, unless set) it is dead-lettered with reason "max_snoozes".
func Snooze(d time.Duration) error { return stream.Snooze(d) }

// Release returns an error that gives the message back as it came: it is delivered again at once, with the same attempt. It is
// for work that was never begun, by a worker that is about to stop.
func Release(err error) error { return stream.Release(err) }

// Outcome tells what a handler asked for by the error that it returned.
//
//	type Outcome struct {
//		Action Action
//		// until the next delivery, of Snooze and RetryAfter; -1 = the worker or the policy decides
//		Delay time.Duration
//		Err   error // the handler's own error; nil when it gave none
//	}
type Outcome = stream.Outcome

// Action names the next step of a message after its handler returned.
//
//	type Action string
type Action = stream.Action

// Actions, one for each way in which a handler may return.
const (
	ActionAcknowledge = stream.ActionAcknowledge // nil
	ActionRetry       = stream.ActionRetry       // any other error, and RetryAfter
	ActionDeadLetter  = stream.ActionDeadLetter  // DeadLetter
	ActionSnooze      = stream.ActionSnooze      // Snooze
	ActionRelease     = stream.ActionRelease     // Release
)

// OutcomeOf tells what a worker does with a message whose handler returned err. Tests of handlers use it.
func OutcomeOf(err error) Outcome { return stream.OutcomeOf(err) }

// WorkerQueue is one of several queues of a worker.
//
//	type WorkerQueue struct {
//		Queue string
//		// Weight is its share of deliveries while others have a backlog, too, as a proportion: of two queues with 3 and 1
//		// the first gets three of four. Default 1, at most 1,000. Must be 0 with Strict.
//		Weight int
//	}
type WorkerQueue = stream.WorkerQueue

// WorkerConfig configures a Worker. Redis, Queue or Queues, Group and Handler are required. How long a delivery may go without a
// sign of life, and how it is retried, is not set here but in Redis, by the policy of the queue.
type WorkerConfig struct {
	Redis  *Redis
	Prefix string // of all keys; default "duestream"
	Queue  string
	// Queues, instead of Queue, are several that share the slots. While more than one has a backlog, each gets deliveries by its
	// weight; a queue whose backlog is gone leaves its share to the others. Give at least two slots for each partition of them:
	// with fewer it takes up to 100 ms to see that a queue has something.
	Queues []WorkerQueue
	// Strict has them served in the order in which they are named: a queue is read only while none before it has a backlog. While
	// the first ones are never empty the last ones are not served at all, for as long as that lasts. A queue that cannot be read
	// counts as empty. What a later queue is given while it waits with a free slot is handled, and not interrupted.
	Strict   bool
	Group    string // created at the beginning of the queue's streams where it is not there
	Consumer string // unique among live workers; default: host, process, random
	Handler  Handler

	// Settled is told how each delivery ended. It must not block; nil = nobody is told.
	Settled func(*Message, Settlement)
	// Retried is told which deliveries are made again, after which delay, and the error. It must not block; nil = nobody is told.
	Retried func(m *Message, delay time.Duration, err string)

	// Admit is asked before each read how many messages may be taken now, at most most: for a rate of the worker's own, say. It
	// waits until there is one, and returns 0 when ctx ends. What is not admitted stays ready for others, and is no attempt. It
	// is called from several goroutines at once where there are several partitions or queues. What comes after a broken
	// connection, because it was given to this worker before, is not asked for. An error counts as one of the read. nil = all.
	Admit func(ctx context.Context, most int) (int, error)

	// Concurrency is how many messages are held at once, each by a handler, of all queues together; default 16.
	Concurrency int
	// ShutdownTimeout is how long handlers may go on after Run's context is cancelled. Default 20s; negative = not at all.
	ShutdownTimeout time.Duration
	// CancelGrace is how long Run then waits for handlers whose context it has cancelled. Default 2s.
	CancelGrace time.Duration

	// HandlerTimeout is how long a handler may take, where neither its message nor the policy of its queue says so
	// (handler_timeout_ms): an operator can give a group another limit without a new release of the program. Then its context is
	// cancelled with ErrHandlerTimeout, and the attempt fails with reason "handler_timeout", unless the handler returns nil all
	// the same. Default 0: no limit, and a handler that hangs keeps its message, its slot and its key for ever. One that
	// ignores its context when its delivery is lost or its message is cancelled keeps its slot until it returns, or until
	// the limit and AbandonAfter are over: set a limit where handlers may hang.
	HandlerTimeout time.Duration
	// AbandonAfter is how long a handler may ignore its context after that. Then it is abandoned: the delivery is settled as
	// failed, and the slot goes to another message. The handler's goroutine lives on, and its side effects may overlap with the
	// next attempt, or with the next message of the same key. The log shows its stack. Default 10s.
	AbandonAfter time.Duration
	// MaxAbandoned is how many abandoned handlers may run beside those that have slots. Beyond it they keep their slots, and
	// Alive and Ready return an error: start the process anew. Default: Concurrency, at least 8. Negative: none may.
	MaxAbandoned int

	Observer Observer     // is told what becomes of deliveries, and how long it takes; nil = nobody is
	Logger   *slog.Logger // nil = discard
}

// Worker delivers the messages of one queue, or of several, to one group's handler, at least once. Run blocks until its context
// is cancelled, and returns nil after a clean stop; call it once. Stats may be called at any time.
//
//	type Worker struct {
//		// contains no exported fields
//	}
//
//	func (*Worker) Alive() error
//	func (*Worker) Consumer() string
//	func (*Worker) Ready() error
//	func (*Worker) Run(ctx context.Context) error
//	func (*Worker) Stats() WorkerStats
type Worker = stream.Worker

// NewWorker checks the configuration; all that is wrong with it is in the error. Redis is not touched before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Redis == nil {
		return nil, errors.New("worker: Redis is required")
	}
	return stream.NewWorker(stream.WorkerConfig{
		Client: observe.Wrap(cfg.Redis.Client, cfg.Observer), Blocking: observe.Wrap(cfg.Redis.Blocking, cfg.Observer),
		Prefix: cfg.Prefix, Queue: cfg.Queue, Queues: cfg.Queues, Strict: cfg.Strict, Group: cfg.Group,
		Observer: cfg.Observer,
		Consumer: cfg.Consumer, Handler: cfg.Handler, Settled: cfg.Settled, Retried: cfg.Retried, Admit: cfg.Admit,
		Concurrency:     cfg.Concurrency,
		ShutdownTimeout: cfg.ShutdownTimeout, CancelGrace: cfg.CancelGrace, Logger: cfg.Logger,
		HandlerTimeout: cfg.HandlerTimeout, AbandonAfter: cfg.AbandonAfter, MaxAbandoned: cfg.MaxAbandoned,
	})
}

// CreateGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless it exists. A worker does
// so by itself; call it to have a group get every message from now on, before its first worker runs.
func CreateGroup(ctx context.Context, r *Redis, prefix, queue, group string) (created bool, err error) {
	return stream.EnsureGroup(ctx, r.Client, withPrefix(prefix), queue, group)
}
