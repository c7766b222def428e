package scheduler

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/lua"
)

// Defaults of Config.
const (
	DefaultHeartbeatInterval = time.Second
	DefaultHeartbeatTimeout  = 2 * time.Second
	DefaultWakeBlock         = 5 * time.Second
	DefaultSurveyInterval    = 5 * time.Second
	DefaultDiscoverInterval  = 5 * time.Second
	DefaultRegistryInterval  = 15 * time.Second
	DefaultOverdue           = 5 * time.Second
	DefaultDrainLimit        = 1000
	DefaultDrainMaxBytes     = 512 << 10
)

const (
	maxBackoff = 5 * time.Second
	maxDrain   = 10_000
)

// Config configures a Scheduler. The defaults together cost an idle scheduler less than two requests a second; all schedulers of
// a prefix should use the same.
type Config struct {
	// Client is used for every call that does not block. Blocking is used for blocked reads only; make it with AlwaysPipelining,
	// else a read is not interrupted when the assignment changes or Run ends. Both are required, and closed by whoever made them.
	// rueidis pings each idle connection every Dialer.KeepAlive, one second unless set: give both clients a longer one.
	Client, Blocking rueidis.Client
	// Prefix starts every key. Default lua.DefaultPrefix.
	Prefix string
	// Logger is told of each change of state once. Default: discard.
	Logger *slog.Logger
	// Identity is what others see of this scheduler: who it is, where it runs, which version. Each scheduler needs one of its
	// own, new at each start. Default: lua.NewIdentity of this process.
	Identity lua.Identity
	// Notice is called when an owned queue was seen with entries, and when something was drained into any queue. It is called
	// from many goroutines and must not block. Default: nothing. Here and below each partition of a queue counts as a queue of
	// its own, by the name that lua.PartitionName gives it.
	Notice func(queue string)
	// Turns is called when an owned queue was seen to hold messages with keys, and nothing that Busy is called for. As Busy.
	Turns func(queue string)
	// Untidy is called when an owned queue was seen without entries, but with bodies without a member, or dedup windows. As
	// Notice.
	Untidy func(queue string)
	// Owned is called with all owned queues when they change, in order, by one goroutine at a time; it must not block. Default:
	// nothing.
	Owned func(queues []string)

	// Observer is told what is drained, and how late. A drain then asks for the time and the head of the schedule as well, in the
	// same round trip. Nil: nobody is told.
	Observer observe.Observer

	// HeartbeatInterval is how often the scheduler says that it lives. Default 1s. One request each.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is after how long without a heartbeat a scheduler is gone; its queues are taken over one interval later at
	// most, with the defaults within 3s. Default 2s; at least twice the interval. Too low: queues move to and fro. Too high: a
	// dead scheduler's queues are late by so much.
	HeartbeatTimeout time.Duration
	// WakeBlock is how long one blocked read waits. Default 5s, at least 100ms.
	WakeBlock time.Duration
	// SurveyInterval is how often up to 250 queues are looked at. Default 5s. It is the ceiling on lateness when a producer adds
	// no wake token. With more queues a scheduler looks at those it owns, in turn and up to twice as often when they are more
	// than 225, and at a few others.
	SurveyInterval time.Duration
	// DiscoverInterval is how often one step of SCAN looks for queues that nobody registered. Default 5s.
	DiscoverInterval time.Duration
	// RegistryInterval is how often the list of queues is read without being told to. Default 15s.
	RegistryInterval time.Duration
	// Overdue is from which lateness on a queue is drained by a scheduler that does not own it. Default 5s.
	Overdue time.Duration
	// DrainLimit and DrainMaxBytes bound one drain: members (default 1,000, at most 10,000), bytes (default 512 KiB; one member
	// always goes). A loop takes fewer members when its last drains say that more would hold the server for longer than 2 ms.
	DrainLimit, DrainMaxBytes int
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, lua.DefaultPrefix)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, DefaultHeartbeatInterval)
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	c.WakeBlock = cmp.Or(c.WakeBlock, DefaultWakeBlock)
	c.SurveyInterval = cmp.Or(c.SurveyInterval, DefaultSurveyInterval)
	c.DiscoverInterval = cmp.Or(c.DiscoverInterval, DefaultDiscoverInterval)
	c.RegistryInterval = cmp.Or(c.RegistryInterval, DefaultRegistryInterval)
	c.Overdue = cmp.Or(c.Overdue, DefaultOverdue)
	c.DrainLimit = cmp.Or(c.DrainLimit, DefaultDrainLimit)
	c.DrainMaxBytes = cmp.Or(c.DrainMaxBytes, DefaultDrainMaxBytes)
	if c.Identity.ID == "" {
		host, _ := os.Hostname()
		c.Identity = lua.NewIdentity(host, os.Getpid(), c.Identity.Version)
	}
	c.Identity.Level = lua.Level
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	if c.Turns == nil {
		c.Turns = func(string) {}
	}
	if c.Untidy == nil {
		c.Untidy = func(string) {}
	}
	if c.Owned == nil {
		c.Owned = func([]string) {}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, lua.Invalid("Client", "nil", "must be a rueidis client"))
	}
	if c.Blocking == nil {
		errs = append(errs, lua.Invalid("Blocking", "nil", "must be a rueidis client for blocked reads"))
	}
	errs = append(errs, lua.CheckPrefix(c.Prefix))
	if _, ok := lua.ParseIdentity(c.Identity.String()); !ok {
		errs = append(errs, lua.Invalid("Identity", c.Identity.ID, "must be one that lua.NewIdentity made"))
	}
	for _, d := range []struct {
		name         string
		value, least time.Duration
	}{
		{"HeartbeatInterval", c.HeartbeatInterval, time.Millisecond}, {"HeartbeatTimeout", c.HeartbeatTimeout,
			2 * c.HeartbeatInterval},
		{"WakeBlock", c.WakeBlock, 100 * time.Millisecond}, {"SurveyInterval", c.SurveyInterval, time.Millisecond},
		{"DiscoverInterval", c.DiscoverInterval, time.Millisecond}, {"RegistryInterval", c.RegistryInterval, time.Millisecond},
		{"Overdue", c.Overdue, time.Millisecond},
	} {
		if d.value < d.least {
			errs = append(errs, fmt.Errorf("%s is %s: must be at least %s", d.name, d.value, d.least))
		}
	}
	if c.DrainLimit < 1 || c.DrainLimit > maxDrain {
		errs = append(errs, fmt.Errorf("DrainLimit is %d: must be between 1 and %d", c.DrainLimit, maxDrain))
	}
	if c.DrainMaxBytes < 1 {
		errs = append(errs, fmt.Errorf("DrainMaxBytes is %d: must be positive", c.DrainMaxBytes))
	}
	return errors.Join(errs...)
}
