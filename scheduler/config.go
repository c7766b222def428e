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
	maxBackoff = 5 * time.Second // longest pause of a loop after errors
	maxDrain   = 10_000          // greatest DrainLimit
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
	// any queue when a drain moved messages. It is called from many goroutines and must not block. Default: no call.
	// For the four callbacks each partition is a queue of its own, named by lua.PartitionName.
	Notice func(queue string)
	// Turns says that the messages of ordering keys take turns in an owned queue: some are in flight, or wait in line,
	// so somebody must see to it that each key passes on to its next message. The survey calls it if it does not call
	// Notice for the queue. In all other respects it is like Notice.
	Turns func(queue string)
	// Untidy says that an owned queue may hold leftovers that somebody must delete in time: payloads or metas without a
	// member, dedup windows, notes of reclaims, or leases. The survey calls it if it calls neither Notice nor Turns for
	// the queue. In all other respects it is like Notice.
	Untidy func(queue string)
	// Owned gets all owned queues, sorted, when they change. One goroutine calls it at a time; it must not block.
	// Default: no call.
	Owned func(queues []string)

	// Observer gets the count of drained messages and their lateness. Default: nil, no observer.
	Observer observe.Observer

	// HeartbeatInterval is the time between two heartbeats. Default 1s. Each heartbeat is one request.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a scheduler may go without a heartbeat before it counts as dead. The others take
	// over its queues at most one interval later; with the defaults within 3s. Default 2s; at least twice the interval.
	// Too low: queues change their owner without need. Too high: the queues of a dead scheduler are late for that long.
	HeartbeatTimeout time.Duration
	// WakeBlock is the longest wait of one blocked read. Default 5s, at least 100ms.
	WakeBlock time.Duration
	// SurveyInterval is the time between two surveys, each of at most 250 queues. Default 5s. It bounds the lateness of
	// a message whose producer adds no wake token. With more than 250 known queues, a survey covers some of the owned
	// queues in turn, and at least 25 queues of other schedulers if they have as many. With more than 225 owned queues
	// as well, the interval becomes shorter, but not shorter than half.
	SurveyInterval time.Duration
	// DiscoverInterval is the time between two steps of the SCAN for unregistered queues. Default 5s.
	DiscoverInterval time.Duration
	// RegistryInterval is the longest time between two reads of the list of queues. A token of the shared wake stream
	// causes a read at once. Default 15s.
	RegistryInterval time.Duration
	// Overdue is the lateness from which any scheduler drains a queue, also one that it does not own. Default 5s.
	Overdue time.Duration
	// DrainLimit is the greatest number of members that one drain moves. Default 1,000, at most 10,000. A loop moves
	// fewer if the times of its last drains suggest that DrainLimit members would hold the server for over 2 ms.
	DrainLimit int
	// DrainMaxBytes is the size at which one drain ends: the member that reaches it, of any size, is the last that the
	// drain moves. Default 512 KiB.
	DrainMaxBytes int
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
