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
func Bridges(ctx context.Context, r *Redis, prefix string) ([]Heartbeat, error) {
	c, key := r.Client, lua.NewGlobals(withPrefix(prefix)).Bridges
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

// Queues returns the names of all queues known to the bridges.
func Queues(ctx context.Context, r *Redis, prefix string) ([]string, error) {
	return scheduler.Queues(ctx, r.Client, withPrefix(prefix))
}

// CheckKnown returns ErrNoQueue for a queue that nobody registered and that has no keys: most likely its name is misspelt.
func CheckKnown(ctx context.Context, r *Redis, prefix, queue string) error {
	return scheduler.CheckKnown(ctx, r.Client, withPrefix(prefix), queue)
}

// WriteDefaults writes the policy of all queues of a prefix that have none of their own. A Bridge does so by itself.
func WriteDefaults(ctx context.Context, r *Redis, prefix string, p Policy) error {
	return stream.WriteDefaults(ctx, r.Client, withPrefix(prefix), p)
}

// PolicyUpdate names the settings of a policy to change.
type PolicyUpdate = stream.PolicyUpdate

// ReadPolicy returns the policy in force for a group of a queue; group "" means one without settings of its own. Warning names what is
// written in Redis but does not count.
func ReadPolicy(ctx context.Context, r *Redis, prefix, queue, group string) (p Policy, warning, err error) {
	return stream.ReadPolicy(ctx, r.Client, withPrefix(prefix), queue, group)
}

// WritePolicy changes settings of a queue, or with a group those of one group alone.
func WritePolicy(ctx context.Context, r *Redis, prefix, queue, group string, u PolicyUpdate) error {
	return stream.WritePolicy(ctx, r.Client, withPrefix(prefix), queue, group, u)
}

// DeadLetters reads, redrives and purges the dead letters of queues.
type DeadLetters = deadletter.DeadLetters

// NewDeadLetters returns the dead letters of a prefix.
func NewDeadLetters(r *Redis, prefix string) *DeadLetters {
	return deadletter.New(r.Client, withPrefix(prefix))
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
func Stats(ctx context.Context, r *Redis, prefix, queue string) (QueueStats, error) {
	return inspect.Stats(ctx, r.Client, withPrefix(prefix), queue)
}

// Pending lists at most limit entries that a group's workers hold, oldest first.
func Pending(ctx context.Context, r *Redis, prefix, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return inspect.Pending(ctx, r.Client, withPrefix(prefix), queue, group, f, limit)
}

// QueueContents is what a queue holds, or held.
type QueueContents = stream.Contents

// ErrNotEmpty: the queue that was to be deleted holds messages.
var ErrNotEmpty = stream.ErrNotEmpty

// DeleteQueue removes a queue with its groups, settings and dedup windows, and with force also its messages; ErrNotEmpty otherwise. ErrNoQueue. A producer that
// goes on scheduling, and a worker that goes on reading, make it again; bridges do not.
func DeleteQueue(ctx context.Context, r *Redis, prefix, queue string, force bool) (QueueContents, error) {
	had, err := stream.DeleteQueue(ctx, r.Client, withPrefix(prefix), queue, force)
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
func Partitions(ctx context.Context, r *Redis, prefix, queue string) (PartitionCounts, error) {
	return stream.Partitions(ctx, r.Client, withPrefix(prefix), queue)
}

// SetPartitions has a queue grow to n partitions, 1 to 256, also while it is in use, and returns all counts it ever had. Producers,
// bridges and workers take the count up within seconds. After an error repeat it; with the count in force it mends what one left.
// progress may be nil. ErrInvalid, ErrShrink.
func SetPartitions(ctx context.Context, r *Redis, prefix, queue string, n int, progress func(done, total int)) (PartitionCounts, error) {
	return stream.Grow(ctx, r.Client, withPrefix(prefix), queue, n, progress)
}
