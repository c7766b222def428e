package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
	"github.com/duestream/duestream/stream/inspect"
)

// This file holds what operators and tools need: looking at queues, dead letters, policies and bridges.

// Checks of single values, as Schedule makes them. They return an InvalidError and do not touch Redis.
var (
	CheckPrefix      = lua.CheckPrefix
	CheckQueue       = lua.CheckQueue
	CheckGroup       = lua.CheckGroup
	CheckID          = lua.CheckID
	CheckPayload     = lua.CheckPayload
	CheckHeaders     = lua.CheckHeaders
	CheckDelay       = lua.CheckDelay
	CheckTime        = lua.CheckTime
	CheckMaxAttempts = lua.CheckMaxAttempts
	CheckPartitions  = lua.CheckPartitions
)

// Reasons returns why a message may have been dead-lettered.
func Reasons() []string { return lua.Reasons() }

// Limits of a message.
const (
	MaxPayloadBytes = lua.MaxPayloadBytes
	MaxErrorBytes   = lua.MaxErrorBytes
)

// Names of the settings of a policy, as Redis and PolicyUpdate.Clear have them.
const (
	SettingVisibility  = stream.SettingVisibility
	SettingMaxAttempts = stream.SettingMaxAttempts
	SettingRetryMin    = stream.SettingRetryMin
	SettingRetryMax    = stream.SettingRetryMax
	SettingHeld        = stream.SettingHeld
)

// Heartbeat is the last sign of life of a bridge.
type Heartbeat struct {
	Bridge   string        // what stands in Redis
	Identity Identity      // what it means
	Foreign  bool          // no bridge wrote it, and none takes it for one
	Age      time.Duration // by the server's clock
}

// Bridges returns the last heartbeats of the bridges of a prefix, newest first. One round trip.
func (a *Admin) Bridges(ctx context.Context) ([]Heartbeat, error) {
	c, key := a.redis.Client, lua.NewGlobals(a.prefix).Bridges
	replies := c.DoMulti(ctx, c.B().Time().Build(), c.B().Zrange().Key(key).Min("0").Max("-1").Rev().Withscores().Build())
	clock, err := replies[0].AsIntSlice()
	if err == nil && len(clock) != 2 {
		err = fmt.Errorf("TIME returned %d values", len(clock))
	}
	if err != nil {
		return nil, fmt.Errorf("bridge: list bridges: %w", lua.Classify("TIME", err))
	}
	scores, err := replies[1].AsZScores()
	if err != nil {
		return nil, fmt.Errorf("bridge: list bridges: %w", lua.Classify("ZRANGE", err))
	}
	now := time.Unix(clock[0], clock[1]*int64(time.Microsecond))
	beats := make([]Heartbeat, len(scores))
	for i, s := range scores {
		identity, ok := lua.ParseIdentity(s.Member)
		beats[i] = Heartbeat{s.Member, identity, !ok, max(0, now.Sub(time.UnixMilli(int64(min(s.Score, 1e15)))))}
	}
	return beats, nil
}

// ErrNoQueue: nobody registered the queue, and it has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

// Admin is what an operator can do with the queues of a prefix: every ability of the command is a method of it. It is safe for concurrent
// use, and holds nothing but the connection, which whoever made it closes.
type Admin struct {
	redis  *Redis
	prefix string
}

// NewAdmin returns a handle on the queues of a prefix; "" is the default one. Redis is not touched.
func NewAdmin(r *Redis, prefix string) *Admin { return &Admin{r, withPrefix(prefix)} }

// Queues returns the names of all queues known to the bridges.
func (a *Admin) Queues(ctx context.Context) ([]string, error) {
	return scheduler.Queues(ctx, a.redis.Client, a.prefix)
}

// CheckKnown returns ErrNoQueue for a queue that nobody registered and that has no keys: most likely its name is misspelt.
func (a *Admin) CheckKnown(ctx context.Context, queue string) error {
	return scheduler.CheckKnown(ctx, a.redis.Client, a.prefix, queue)
}

// WriteDefaults writes the policy of all queues of a prefix that have none of their own. A Bridge does so by itself.
func (a *Admin) WriteDefaults(ctx context.Context, p Policy) error {
	return stream.WriteDefaults(ctx, a.redis.Client, a.prefix, p)
}

// PolicyUpdate names the settings of a policy to change.
type PolicyUpdate = stream.PolicyUpdate

// ReadPolicy returns the policy in force for a group of a queue; group "" means one without settings of its own. Warning names what is
// written in Redis but does not count.
func (a *Admin) ReadPolicy(ctx context.Context, queue, group string) (p Policy, warning, err error) {
	return stream.ReadPolicy(ctx, a.redis.Client, a.prefix, queue, group)
}

// WritePolicy changes settings of a queue, or with a group those of one group alone.
func (a *Admin) WritePolicy(ctx context.Context, queue, group string, u PolicyUpdate) error {
	return stream.WritePolicy(ctx, a.redis.Client, a.prefix, queue, group, u)
}

// DeadLetters reads, redrives and purges the dead letters of queues.
type DeadLetters = deadletter.DeadLetters

// DeadLetters returns the dead letters of a prefix.
func (a *Admin) DeadLetters() *DeadLetters {
	return deadletter.New(a.redis.Client, a.prefix)
}

// What DeadLetters takes and returns.
type (
	Letter         = deadletter.Letter
	LetterFilter   = deadletter.Filter
	RedriveOptions = deadletter.RedriveOptions
	RedriveResult  = deadletter.RedriveResult
	Payload        = view.Payload
)

// What Stats and Pending take and return.
type (
	QueueStats     = inspect.QueueStats
	GroupStats     = inspect.GroupStats
	PartitionStats = inspect.PartitionStats
	PendingFilter  = inspect.PendingFilter
	PendingEntry   = inspect.PendingEntry
)

// ErrNoGroup: the consumer group does not exist.
var ErrNoGroup = lua.ErrNoGroup

// Stats returns what a queue holds, per group.
func (a *Admin) Stats(ctx context.Context, queue string) (QueueStats, error) {
	return inspect.Stats(ctx, a.redis.Client, a.prefix, queue)
}

// Pending lists at most limit entries that a group's workers hold, oldest first.
func (a *Admin) Pending(ctx context.Context, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return inspect.Pending(ctx, a.redis.Client, a.prefix, queue, group, f, limit)
}

// QueueContents is what a queue holds, or held.
type QueueContents = stream.Contents

// ErrNotEmpty: the queue that was to be deleted holds messages.
var ErrNotEmpty = stream.ErrNotEmpty

// DeleteQueue removes a queue with its groups, settings and dedup windows, and with force also its messages; ErrNotEmpty otherwise. ErrNoQueue. A producer that
// goes on scheduling, and a worker that goes on reading, make it again; bridges do not.
func (a *Admin) DeleteQueue(ctx context.Context, queue string, force bool) (QueueContents, error) {
	had, err := stream.DeleteQueue(ctx, a.redis.Client, a.prefix, queue, force)
	if errors.Is(err, stream.ErrUnknownQueue) {
		err = fmt.Errorf("bridge: delete queue %s: %w", queue, ErrNoQueue)
	}
	return had, err
}

// PartitionCounts holds every partition count that a queue ever had, in order. The last one is in force.
type PartitionCounts = lua.Counts

// ErrShrink: a queue was to have fewer partitions than it has.
var ErrShrink = stream.ErrShrink

// Partitions returns the partition counts of a queue.
func (a *Admin) Partitions(ctx context.Context, queue string) (PartitionCounts, error) {
	return stream.Partitions(ctx, a.redis.Client, a.prefix, queue)
}

// SetPartitions has a queue grow to n partitions, 1 to 256, also while it is in use, and returns all counts it ever had. Producers,
// bridges and workers take the count up within seconds. After an error repeat it; with the count in force it mends what one left.
// progress may be nil. ErrInvalid, ErrShrink.
func (a *Admin) SetPartitions(ctx context.Context, queue string, n int, progress func(done, total int)) (PartitionCounts, error) {
	return stream.Grow(ctx, a.redis.Client, a.prefix, queue, n, progress)
}
