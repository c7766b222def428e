package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// Time returns the time of the server that holds a queue; messages of the queue are due and expire by that clock. For
// "" it returns the time of the server that answers first.
func (a *Admin) Time(ctx context.Context, queue string) (time.Time, error) {
	if queue == "" {
		return view.ServerTime(ctx, a.redis.Client)
	}
	if err := lua.CheckQueue(queue); err != nil {
		return time.Time{}, err
	}
	return view.ServerTimeOf(ctx, a.redis.Client, lua.NewKeys(a.prefix, queue).Due)
}

// Flow holds the release limits of a queue, and whether its workers are paused: see [inspect.Flow].
type Flow = inspect.Flow

// QueueStats is the state of a queue, over all its partitions: see [inspect.QueueStats].
type QueueStats = inspect.QueueStats

// GroupStats is the backlog of one group: see [inspect.GroupStats].
type GroupStats = inspect.GroupStats

// PartitionStats is the state of one partition of a queue: see [inspect.PartitionStats].
type PartitionStats = inspect.PartitionStats

// PendingFilter selects pending entries; the zero value selects all: see [inspect.PendingFilter].
type PendingFilter = inspect.PendingFilter

// PendingEntry is an entry that a consumer holds: see [inspect.PendingEntry].
type PendingEntry = inspect.PendingEntry

// Stats returns the state of a queue and of its groups. A count that would take long stops at a bound and is marked as
// approximate. An unknown queue is empty: use CheckKnown to tell.
func (a *Admin) Stats(ctx context.Context, queue string) (QueueStats, error) {
	return inspect.Stats(ctx, a.redis.Client, a.prefix, queue)
}

// Pending lists at most limit entries that a group's consumers hold, over all partitions, oldest entry first.
// ErrNoGroup.
func (a *Admin) Pending(ctx context.Context, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return inspect.Pending(ctx, a.redis.Client, a.prefix, queue, group, f, limit)
}
