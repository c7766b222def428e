package admin

import (
	"context"

	"github.com/duestream/duestream/stream/inspect"
)

// What Stats and Pending take and return.
type (
	QueueStats     = inspect.QueueStats
	GroupStats     = inspect.GroupStats
	PartitionStats = inspect.PartitionStats
	PendingFilter  = inspect.PendingFilter
	PendingEntry   = inspect.PendingEntry
)

// Stats returns what a queue holds, per group.
func (a *Admin) Stats(ctx context.Context, queue string) (QueueStats, error) {
	return inspect.Stats(ctx, a.redis.Client, a.prefix, queue)
}

// Pending lists at most limit entries that a group's workers hold, oldest first.
func (a *Admin) Pending(ctx context.Context, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return inspect.Pending(ctx, a.redis.Client, a.prefix, queue, group, f, limit)
}
