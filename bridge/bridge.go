package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream/keeper"
)

// Policy is how a queue releases, delivers and retries its messages: see [policy.Policy].
type Policy = policy.Policy

// Rate limits how many messages become ready, as 500/s, 30/m or 1/h: see [lua.Rate].
type Rate = lua.Rate

// KeyFailure decides whether a message with an ordering key waits for the retries of the message before it: see
// [policy.KeyFailure].
type KeyFailure = policy.KeyFailure

// Values of KeyFailure.
const (
	KeyBlock = policy.KeyBlock // the next message waits until the earlier message is done or dead-lettered
	KeySkip  = policy.KeySkip  // the next message does not wait for a retry, which waits until the key is free again
)

// DefaultPolicy returns the built-in policy: a visibility timeout of 30 s, 40 attempts, and retry delays from 1 s to
// 1 h. A message that always fails becomes a dead letter after about a day.
func DefaultPolicy() Policy { return policy.Default() }

// Config configures a Bridge. Redis is required.
type Config struct {
	Redis  *Redis
	Prefix string // prefix of all Redis keys; default "duestream"

	// Defaults is the policy of queues that have no policy of their own. All bridges of a prefix share it: the last
	// bridge to start overwrites it. The zero value leaves the defaults in Redis unchanged; without any, DefaultPolicy
	// holds.
	Defaults Policy

	// AnyServer also accepts a server that is too old or that evicts keys when it is full. Such a server can lose
	// messages.
	AnyServer bool

	// Identity is published in this bridge's heartbeats. The zero value becomes NewIdentity("").
	Identity Identity

	Observer Observer     // gets events and durations of this bridge; nil = none
	Logger   *slog.Logger // nil = discard
}

// Identity is the host, process ID, version and start of a bridge: see [lua.Identity].
type Identity = lua.Identity

// NewIdentity returns the identity of a bridge that this process starts now. An empty version becomes the version of
// duestream that this program was built with.
func NewIdentity(version string) Identity {
	host, _ := os.Hostname()
	return lua.NewIdentity(host, os.Getpid(), version)
}

// Bridge moves messages into streams when they are due, reclaims abandoned deliveries and frees the memory of settled
// messages. Any number of bridges may run. They share the queues. If a bridge ends, the others take over its queues
// within 3 s.
type Bridge struct {
	cfg       Config
	scheduler *scheduler.Scheduler
	keeper    *keeper.Keeper
	log       *slog.Logger
}

func (c Config) validate() error {
	faults := []error{
		lua.Required("redis", c.Redis != nil && c.Redis.Client != nil && c.Redis.Blocking != nil),
		lua.CheckPrefix(c.Prefix),
		lua.CheckIdentity(c.Identity),
	}
	if c.Defaults != (Policy{}) {
		if err := c.Defaults.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("defaults: %w", err))
		}
	}
	return lua.Faults("bridge", faults...)
}

// NewBridge checks the configuration; the error names all its faults, each an *InvalidError. Redis is not touched
// before Run.
func NewBridge(cfg Config) (*Bridge, error) {
	cfg.Prefix = withPrefix(cfg.Prefix)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Identity.ID == "" {
		cfg.Identity = NewIdentity(cfg.Identity.Version)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	var err error
	client, blocking := cfg.Redis.observed(cfg.Observer)
	b.scheduler, err = scheduler.New(scheduler.Config{
		Client: client, Blocking: blocking, Prefix: cfg.Prefix, Logger: cfg.Logger, Identity: cfg.Identity,
		Observer: cfg.Observer,
		Notice:   func(queue string) { b.keeper.Notice(queue) },
		Turns:    func(queue string) { b.keeper.Turns(queue) },
		Untidy:   func(queue string) { b.keeper.Untidy(queue) },
		Owned:    func(queues []string) { b.keeper.Own(queues) },
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

// numbers returns the Status in the form that an Observer receives.
func (b *Bridge) numbers() BridgeNumbers {
	s := b.Status()
	return BridgeNumbers{LastHeartbeat: s.LastHeartbeat, Live: len(s.Live), Queues: s.Queues, Partitions: s.Partitions,
		Owned: s.Owned}
}

// Run serves the queues until ctx is cancelled, and then returns nil. During an outage of Redis it keeps trying. If the
// server is too old or evicts keys, Run returns ErrUnsupported at once, unless Config.AnyServer is set.
func (b *Bridge) Run(ctx context.Context) error {
	if err := b.checkServer(ctx); err != nil {
		return err
	}
	if b.cfg.Observer != nil {
		view := BridgeView{Client: b.cfg.Redis.Client, Prefix: b.cfg.Prefix, Owned: b.scheduler.Owned, Status: b.numbers}
		if ended := b.cfg.Observer.BridgeStarted(view); ended != nil {
			defer ended()
		}
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
		b.log.Info("server", slog.String("product", info.Product), slog.String("version", info.Version),
			slog.Bool("aof", info.AOF), slog.Int64("maxmemory", info.MaxMemory))
		if !info.AOF {
			b.log.Warn("the append-only file is off: a crash of redis loses what it has not saved")
		}
	}
	return nil
}

// Status is the state of a bridge as it sees itself: see [scheduler.Status].
type Status = scheduler.Status

// Late is a partition that a bridge owns but does not drain on time: see [scheduler.Late].
type Late = scheduler.Late

// Status returns the bridge's ID, its last heartbeat, the live bridges, the numbers of queues and partitions, and the
// partitions that this bridge owns. It does not ask Redis.
func (b *Bridge) Status() Status { return b.scheduler.Status() }
