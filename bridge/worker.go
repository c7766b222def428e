package bridge

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/duestream/duestream/stream"
)

// Message is one delivery of a message to a handler.
type Message = stream.Message

// Handler does the work of one message: nil acknowledges it, an error has it delivered again by policy, see also RetryAfter,
// DeadLetter and Release. Messages are delivered at least once.
type Handler = stream.Handler

// Settlement says how a delivery left a worker's hands.
type Settlement = stream.Settlement

// Settlements; stream.Settlement explains each.
const (
	Acknowledged = stream.Acknowledged
	Retried      = stream.Retried
	Dead         = stream.Dead
	Released     = stream.Released
	Skipped      = stream.Skipped
	Lost         = stream.Lost
	Unknown      = stream.Unknown
	Stuck        = stream.Stuck
)

// WorkerStats counts what a worker did since it was made.
type WorkerStats = stream.WorkerStats

// RetryAfter returns an error that has the message delivered again after d instead of the policy's delay.
func RetryAfter(d time.Duration, err error) error { return stream.RetryAfter(d, err) }

// DeadLetter returns an error that has the message dead-lettered at once.
func DeadLetter(err error) error { return stream.DeadLetter(err) }

// Release returns an error that gives the message back as it came: it is delivered again at once, with the same attempt. It is for work
// that was never begun, by a worker that is about to stop.
func Release(err error) error { return stream.Release(err) }

// WorkerConfig configures a Worker. Redis, Queue, Group and Handler are required; the rest is explained at stream.WorkerConfig.
type WorkerConfig struct {
	Redis           *Redis
	Prefix          string
	Queue           string
	Group           string
	Consumer        string // default: host, process, random
	Handler         Handler
	Settled         func(*Message, Settlement)                        // told how each delivery ended; must not block; nil = nobody is
	Retried         func(m *Message, delay time.Duration, err string) // told which are delivered again, and when; must not block; nil = nobody is
	Concurrency     int                                               // messages held at once; default 16
	ShutdownTimeout time.Duration                                     // how long handlers may go on after Run's context is cancelled; default 20s, negative = not at all
	CancelGrace     time.Duration                                     // how long Run then waits for them; default 2s
	Logger          *slog.Logger                                      // nil = discard
}

// Worker delivers the messages of one queue to one group's handler, at least once.
type Worker = stream.Worker

// NewWorker checks the configuration; all that is wrong with it is in the error. Redis is not touched before Run.
func NewWorker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Redis == nil {
		return nil, errors.New("worker: Redis is required")
	}
	return stream.NewWorker(stream.WorkerConfig{
		Client: cfg.Redis.Client, Blocking: cfg.Redis.Blocking, Prefix: cfg.Prefix, Queue: cfg.Queue, Group: cfg.Group,
		Consumer: cfg.Consumer, Handler: cfg.Handler, Settled: cfg.Settled, Retried: cfg.Retried, Concurrency: cfg.Concurrency,
		ShutdownTimeout: cfg.ShutdownTimeout, CancelGrace: cfg.CancelGrace, Logger: cfg.Logger,
	})
}

// CreateGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless it exists. A worker does so by itself; call it to
// have a group get every message from now on, before its first worker runs.
func CreateGroup(ctx context.Context, r *Redis, prefix, queue, group string) (created bool, err error) {
	return stream.EnsureGroup(ctx, r.Client, withPrefix(prefix), queue, group)
}
