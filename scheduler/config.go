package scheduler

import (
	"cmp"
	"errors"
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

// Config configures a Scheduler. All schedulers of a prefix should use the same values. With the defaults, an idle
// scheduler sends less than two requests a second.
type Config struct {
	// Client serves every call that does not block. Blocking serves blocked reads only: make it with AlwaysPipelining,
	// else a read is not interrupted when the assignment changes or Run ends. Both are required; whoever made them
	// closes them. rueidis pings each idle connection every Dialer.KeepAlive, by default one second: give both clients
	// a longer one.
	Client, Blocking rueidis.Client
	// Prefix starts every key. Default lua.DefaultPrefix.
	Prefix string
	// Logger gets one line per change of state. Default: discard.
	Logger *slog.Logger
	// Identity names this scheduler to the others, with its host, process and version. Each scheduler needs its own,
	// new at each start. Default: lua.NewIdentity of this process.
	Identity lua.Identity
	// Notice is called for an owned queue when the survey finds entries in its stream or a wake token arrives, and for
	// any queue when a drain moved something. It is called from many goroutines and must not block. Default: no call.
	// Here and below each partition counts as a queue of its own, named by lua.PartitionName.
	Notice func(queue string)
	// Turns is called for an owned queue that has messages with keys, and no entries that Notice reports. Otherwise as
	// Notice.
	Turns func(queue string)
	// Untidy is called for an owned queue for which neither Notice nor Turns is called, but that has bodies without a
	// member, dedup windows, notes of reclaims, or leases. Otherwise as Notice.
	Untidy func(queue string)
	// Owned gets all owned queues, sorted, when they change. One goroutine calls it at a time; it must not block.
	// Default: no call.
	Owned func(queues []string)

	// Observer gets the count of drained messages and their lateness. With one, a drain also asks for the time and the
	// head of the schedule, in the same round trip. Default: nil, no observer.
	Observer observe.Observer

	// HeartbeatInterval is the time between two heartbeats. Default 1s. One request each.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a scheduler may go without a heartbeat before it counts as gone. The others take
	// over its queues at most one interval later; with the defaults within 3s. Default 2s; at least twice the interval.
	// Too low: queues move to and fro. Too high: the queues of a dead scheduler are late for that long.
	HeartbeatTimeout time.Duration
	// WakeBlock is the longest wait of one blocked read. Default 5s, at least 100ms.
	WakeBlock time.Duration
	// SurveyInterval is the time between two surveys, of at most 250 queues each. Default 5s. It bounds the lateness
	// when a producer adds no wake token. With more than 250 known queues, a survey takes owned ones in turn, and at
	// least 25 of other schedulers as far as there are any. With more than 225 owned queues the interval shrinks, down
	// to half.
	SurveyInterval time.Duration
	// DiscoverInterval is the time between two steps of the SCAN for unregistered queues. Default 5s.
	DiscoverInterval time.Duration
	// RegistryInterval is the longest time between two reads of the list of queues; a token of the shared wake stream
	// causes one at once. Default 15s.
	RegistryInterval time.Duration
	// Overdue is the lateness from which any scheduler drains a queue, also one that it does not own. Default 5s.
	Overdue time.Duration
	// DrainLimit and DrainMaxBytes bound one drain: members (default 1,000, at most 10,000), bytes (default 512 KiB;
	// one member always goes). A loop takes fewer members when by its last drains more would hold the server for over 2
	// ms.
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
	return errors.Join(
		lua.Required("redis", c.Client != nil && c.Blocking != nil),
		lua.CheckPrefix(c.Prefix),
		lua.CheckIdentity(c.Identity),
		lua.AtLeast("HeartbeatInterval", c.HeartbeatInterval, time.Millisecond),
		lua.AtLeast("HeartbeatTimeout", c.HeartbeatTimeout, 2*c.HeartbeatInterval),
		lua.AtLeast("WakeBlock", c.WakeBlock, 100*time.Millisecond),
		lua.AtLeast("SurveyInterval", c.SurveyInterval, time.Millisecond),
		lua.AtLeast("DiscoverInterval", c.DiscoverInterval, time.Millisecond),
		lua.AtLeast("RegistryInterval", c.RegistryInterval, time.Millisecond),
		lua.AtLeast("Overdue", c.Overdue, time.Millisecond),
		lua.Between("DrainLimit", c.DrainLimit, 1, maxDrain),
		lua.AtLeast("DrainMaxBytes", c.DrainMaxBytes, 1),
	)
}
