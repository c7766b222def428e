package bridge

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/keeper"
)

// Policy is how a queue releases, delivers and retries its messages. It is stored in Redis. A value that a queue does
// not set comes from the defaults of the prefix, which a bridge writes from its Config.
//
//	type Policy struct {
//		// VisibilityTimeout is how long an entry may stay pending without being extended before it counts as abandoned:
//		// 100ms to 7 days. It must exceed the time a worker needs that does not extend. Too low: work that goes on is
//		// given to another worker as well. Too high: what a dead worker held waits that long.
//		VisibilityTimeout time.Duration
//		// MaxAttempts is how often a message is delivered to a group before it is dead-lettered, unless the message says
//		// otherwise: 1 to 1,000,000.
//		MaxAttempts int
//		// RetryMin is about the delay after the first failed attempt; each further one is about twice the one before,
//		// jittered by half. From 1ms.
//		RetryMin time.Duration
//		// RetryMax is what no delay exceeds; at least RetryMin, at most ten years.
//		RetryMax time.Duration
//		// RetryDelays, when set, are the delays after failed attempts instead of those from RetryMin to RetryMax, exactly
//		// so: the n-th follows the n-th failed attempt, the last one all further. One alone is a fixed delay. See
//		// NewDelays.
//		RetryDelays Delays
//		// RetryFor is how long a message is tried, from its first due time on: a retry that would be due later makes a
//		// dead letter "retry_for" instead. Zero is no limit; at most ten years.
//		RetryFor time.Duration
//		// MaxSnoozes is how often a group may snooze a message: once more makes a dead letter "max_snoozes". Zero is
//		// 1,000; at most 1,000,000.
//		MaxSnoozes int
//		// MaxCrashes, when set, has what was abandoned (its worker ended or hung, and the visibility timeout passed)
//		// counted apart from failures: it is delivered again with the same attempt, and the time that reaches MaxCrashes
//		// makes a dead letter "crashes". Zero: it is a failed attempt. At most 1,000,000.
//		MaxCrashes int
//		// HandlerTimeout is how long a handler may take. Then its context is cancelled, and its attempt fails with reason
//		// "handler_timeout". Zero: each worker's own HandlerTimeout counts, and that is no limit by default. At most ten
//		// years. Workers apply a change to the handlers that run already. Too low: work is cut short. Too high: a handler
//		// that hangs keeps its message, its slot and its key for so long.
//		HandlerTimeout time.Duration
//		// Held stops the queue's messages from becoming ready, for all groups. What is ready already is delivered.
//		Held bool
//		// HeldWorkers has the workers of all groups take nothing new; they finish what they hold.
//		HeldWorkers bool
//		// Rate is how many messages become ready in a second, a minute or an hour, evenly; empty is no limit. In each
//		// partition of a queue it counts by itself.
//		Rate Rate
//		// Burst is how many may become ready at once after none did for a while: at most 1,000,000. In no second is it
//		// more than Rate and Burst together. Zero is a tenth of a second's, at least one. With less than 50 ms of the
//		// rate's the queue is slower while another bridge takes over.
//		Burst int
//		// FreeRetries leaves retries and redriven dead letters out of the Rate: they become ready when they are due, and
//		// are not counted.
//		FreeRetries bool
//		// ReadyLimit has messages stay scheduled while so many are ready that the slowest group has not been given; in
//		// each partition by itself. Retries and redriven dead letters pass. Zero is no limit; at most 1,000,000,000.
//		ReadyLimit int
//		// History is how many changes of state the history of the queue keeps, in each partition: the newest, about a
//		// hundred more, and none that is much older than HistoryAge. Zero: there is none, which is what is built in; at
//		// most 10,000,000.
//		History int
//		// HistoryAge is how long they are kept: 1 minute to 90 days.
//		HistoryAge time.Duration
//		// KeyFailure says what a retry of a message with a key does to the next message of that key. Empty is KeyBlock.
//		KeyFailure KeyFailure
//	}
//
//	func (Policy) Attempts() lua.Attempts
//	func (Policy) Delay(attempt int) time.Duration
//	func (Policy) TriedFor() time.Duration
//	func (Policy) Validate() error
type Policy = stream.Policy

// Rate limits how many messages become ready per second, minute or hour. It is a text: 500/s, 30/m or 1/h, with numbers
// up to 1,000,000. Empty is no limit.
//
//	type Rate string
//
//	func (Rate) DefaultBurst() int
//	func (Rate) Interval() time.Duration
//	func (Rate) Normal() Rate
//	func (Rate) PerSecond() float64
type Rate = lua.Rate

// KeyFailure is whether a message with a key waits for the retries of the message before it.
//
//	type KeyFailure string
type KeyFailure = stream.KeyFailure

// Values of KeyFailure.
const (
	KeyBlock = stream.KeyBlock // wait until the earlier message is done or dead-lettered: the order is kept
	KeySkip  = stream.KeySkip  // do not wait for a retry, which then waits for its turn again
)

// DefaultPolicy returns the built-in policy: a visibility timeout of 30 s, 40 attempts, and retry delays from 1 s to
// 1 h. A message that always fails becomes a dead letter after about a day.
func DefaultPolicy() Policy { return stream.DefaultPolicy() }

// Config configures a Bridge. Redis is required.
type Config struct {
	Redis  *Redis
	Prefix string // of all keys; default "duestream"

	// Defaults is the policy of queues without one of their own. All bridges of a prefix share it: the last bridge to
	// start overwrites it. The zero value leaves the defaults in Redis unchanged.
	Defaults Policy

	// AnyServer also accepts a server that is too old or that evicts keys when it is full. Such a server can lose
	// messages.
	AnyServer bool

	// Identity is published in this bridge's heartbeats. The zero value becomes NewIdentity("").
	Identity Identity

	Observer Observer     // gets events and durations of this bridge; nil = none
	Logger   *slog.Logger // nil = discard
}

// Identity identifies the process of a bridge: its host, process ID, version and start.
//
//	type Identity struct {
//		ID      string // ULID of its start
//		Host    string // as the bridge calls its machine or container; "" = not told
//		PID     int    // 0 = not told
//		Version string // "" = not told
//		Level   int    // what the bridge serves: see Level; 1 or less = not told
//	}
//
//	func (Identity) Actor() string
//	func (Identity) Started() time.Time
//	func (Identity) String() string
type Identity = lua.Identity

// NewIdentity returns the identity of a bridge that this process starts now. An empty version becomes the version of
// duestream that this program was built with.
func NewIdentity(version string) Identity {
	host, _ := os.Hostname()
	return lua.NewIdentity(host, os.Getpid(), version)
}

// Bridge moves messages into streams when they are due, reclaims abandoned deliveries and frees the memory of settled
// messages. Any number of bridges may run. They share the queues, and take over from one another within 3 s.
type Bridge struct {
	cfg       Config
	scheduler *scheduler.Scheduler
	keeper    *keeper.Keeper
	log       *slog.Logger
}

// NewBridge checks the configuration. Redis is not touched before Run.
func NewBridge(cfg Config) (*Bridge, error) {
	if cfg.Redis == nil {
		return nil, errors.New("Redis is required")
	}
	cfg.Prefix = withPrefix(cfg.Prefix)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Identity == (Identity{}) {
		cfg.Identity = NewIdentity("")
	}
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	var err error
	client := observe.Wrap(cfg.Redis.Client, cfg.Observer)
	b.scheduler, err = scheduler.New(scheduler.Config{
		Client: client, Blocking: observe.Wrap(cfg.Redis.Blocking, cfg.Observer), Prefix: cfg.Prefix, Logger: cfg.Logger,
		Identity: cfg.Identity, Observer: cfg.Observer,
		Notice: func(queue string) { b.keeper.Notice(queue) },
		Turns:  func(queue string) { b.keeper.Turns(queue) },
		Untidy: func(queue string) { b.keeper.Untidy(queue) },
		Owned:  func(queues []string) { b.keeper.Own(queues) },
	})
	if err != nil {
		return nil, err
	}
	b.keeper, err = keeper.New(keeper.Config{
		Client: client, Prefix: cfg.Prefix, Logger: cfg.Logger, Defaults: cfg.Defaults, Observer: cfg.Observer,
		Actor: cfg.Identity.Actor(),
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Observer receives the events and durations of bridges, workers and clients. One Observer may serve any number of
// them. Package bridge/metrics has an Observer for Prometheus.
//
//	type Observer interface {
//		// Of returns where a part tells what happens to a queue, and to one of its groups unless group is "". The parts ask once and
//		// keep the answer.
//		Of(part observe.Part, queue, group string) observe.Series
//		// Call is told of a call to Redis: the script that was run, "" for any other command, how long it took, and its error.
//		Call(script string, took time.Duration, err error)
//		// Serves is told of a bridge when it begins to run, and asks it for what it owns until the bridge calls ended.
//		Serves(observe.Served) (ended func())
//	}
type Observer = observe.Observer

// observed returns the Status in the form that an Observer receives.
func (b *Bridge) observed() observe.Status {
	s := b.Status()
	return observe.Status{LastHeartbeat: s.LastHeartbeat, Live: len(s.Live), Queues: s.Queues, Partitions: s.Partitions,
		Owned: s.Owned}
}

// Run serves until ctx is cancelled, and then returns nil. During an outage of Redis it retries without end. It returns
// ErrUnsupported at once if the server is too old or evicts keys, unless Config.AnyServer is set.
func (b *Bridge) Run(ctx context.Context) error {
	if err := b.checkServer(ctx); err != nil {
		return err
	}
	if b.cfg.Observer != nil {
		defer b.cfg.Observer.Serves(observe.Served{Client: b.cfg.Redis.Client, Prefix: b.cfg.Prefix, Owned: b.scheduler.Owned,
			Status: b.observed})()
	}
	var parts sync.WaitGroup
	parts.Go(func() { logError(b.log, "keeper", b.keeper.Run(ctx)) })
	err := b.scheduler.Run(ctx)
	parts.Wait()
	return err
}

func logError(log *slog.Logger, part string, err error) {
	if err != nil {
		log.Error("part of the bridge ended", slog.String("part", part), slog.Any("error", err))
	}
}

// checkServer refuses a server that would lose messages. If the server does not answer now, the check is skipped: the
// loops wait for the server.
func (b *Bridge) checkServer(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := view.CheckServer(call, b.cfg.Redis.Client)
	switch {
	case errors.Is(err, ErrUnsupported) && b.cfg.AnyServer:
		b.log.Warn("serving from a server that may lose messages", slog.Any("error", err))
	case errors.Is(err, ErrUnsupported):
		return err
	case err != nil:
		b.log.Warn("could not check the server", slog.Any("error", err))
	case errors.Is(info.Untold, ErrDenied):
		b.log.Warn("the server could not be checked",
			slog.String("because", "it may delete queues when it is full, lose messages in a crash, or be too old"),
			slog.String("hint", "grant the user +info"), slog.Any("error", info.Untold))
	case info.Version != "":
		b.log.Info("server", slog.String("product", info.Product), slog.String("version", info.Version), slog.Bool("aof", info.AOF),
			slog.Int64("maxmemory", info.MaxMemory))
		if !info.AOF {
			b.log.Warn("the append-only file is off: a crash of redis loses what it has not saved")
		}
	}
	return nil
}

// Status is the state of a bridge as it sees itself.
//
//	type Status struct {
//		Bridge        string
//		LastHeartbeat time.Time // local; zero = none yet
//		// local: when the loop of heartbeats last came round, whether Redis answered or not; zero = not yet. More than
//		// 30s ago: it hangs
//		Turned     time.Time
//		Live       []string // the schedulers that lived then, this one among them, in order
//		Queues     int      // known
//		Partitions int      // of all of them; a queue has one at least
//		Owned      int      // partitions
//		Late       []Late   // of the owned ones, those that are not drained on time, the latest first
//	}
//
//	func (Status) Alive() error
//	func (Status) Broken() error
//	func (Status) Ready() error
type Status = scheduler.Status

// Late is a partition that a bridge owns but does not drain on time.
//
//	type Late struct {
//		Partition string
//		By        time.Duration // how late its oldest message is; 0 = nobody has seen
//		Failing   string        // why its drains fail; "" = they do not
//		// WrongType: a key of it holds what another program wrote there. No bridge can serve it: see Status.Broken.
//		WrongType bool
//	}
//
//	func (Late) String() string
type Late = scheduler.Late

// Status returns the bridge's ID, its last heartbeat, the live bridges, the numbers of queues and partitions, and the
// partitions that this bridge owns. It does not ask Redis.
func (b *Bridge) Status() Status { return b.scheduler.Status() }
