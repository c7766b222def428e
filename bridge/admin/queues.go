package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
)

// Queues returns the names of all queues that are registered under the prefix, in order. One round trip.
func (a *Admin) Queues(ctx context.Context) ([]string, error) {
	return scheduler.Queues(ctx, a.redis.Client, a.prefix)
}

// QueueContents counts the contents of a queue: see [stream.Contents].
type QueueContents = stream.Contents

// DeleteQueue deletes a queue with its groups, settings and dedup windows, and returns what it held. With force it also
// deletes its messages, recurrences and push targets. A producer that still schedules, or a worker that still reads,
// creates the queue again; a bridge does not. ErrNoQueue: there is no such queue. ErrNotEmpty: without force a queue
// with contents stays, with its groups and policy. If a message arrives during the deletion the queue also stays, but
// dedup windows of empty partitions are lost.
func (a *Admin) DeleteQueue(ctx context.Context, queue string, force bool) (QueueContents, error) {
	had, err := stream.DeleteQueue(ctx, a.redis.Client, a.prefix, queue, force)
	if errors.Is(err, stream.ErrUnknownQueue) {
		err = a.suggest(ctx, fmt.Errorf("delete queue %s: %w", queue, ErrNoQueue), queue)
	}
	return had, err
}

// RolledBack counts the changes of RollBackQueue: see [stream.RolledBack].
type RolledBack = stream.RolledBack

// ErrNewBridge: a bridge is alive that serves keys of messages, so messages would wait for their keys again. Nothing
// was changed.
var ErrNewBridge = stream.ErrNewBridge

// RollBackQueue prepares a queue for bridges of a release without keys of messages: every message that waits for its
// key becomes due at its own due time. From then on messages of one key may be delivered at the same time.
// ErrNewBridge: a live bridge serves keys, and force is not set. Repeat the call after an error.
func (a *Admin) RollBackQueue(ctx context.Context, queue string, force bool) (RolledBack, error) {
	return stream.Rollback(ctx, a.redis.Client, a.prefix, queue, force)
}

// PartitionCounts holds every partition count of a queue, in order, the last one in force: see [lua.Counts].
type PartitionCounts = lua.Counts

// Partitions returns the partition counts of a queue; {1} if it is not registered. One round trip.
func (a *Admin) Partitions(ctx context.Context, queue string) (PartitionCounts, error) {
	return stream.Partitions(ctx, a.redis.Client, a.prefix, queue)
}

// SetPartitions grows a queue to n partitions, 1 to 256, even while it is in use, and returns all counts that it has
// had. Producers, bridges and workers use the new count within seconds. Repeat the call after an error: if n is the
// count in force, the call completes an interrupted growth. progress may be nil. ErrInvalid: n is out of its limits.
// ErrShrink: n is less than the count in force. ErrKeyed: the queue holds messages with a key; nothing was changed. To
// look for keys, the call reads the meta of every scheduled message.
func (a *Admin) SetPartitions(ctx context.Context, queue string, n int, progress func(done, total int)) (PartitionCounts, error) {
	counts, err := a.Partitions(ctx, queue)
	if err != nil {
		return nil, err
	}
	if n > counts.Latest() && lua.CheckPartitions(n) == nil {
		if err := stream.CheckKeys(ctx, a.redis.Client, a.prefix, queue); err != nil {
			return counts, fmt.Errorf("grow to %d partitions: %w", n, err)
		}
	}
	return stream.Grow(ctx, a.redis.Client, a.prefix, queue, n, progress)
}

// SetPartitionsDespiteKeys is SetPartitions for a queue that holds messages with a key. Old messages stay in their
// partitions and keep their order. New messages go to the partition to which their key belongs now. Until the old
// messages and their retries are done, several messages of one key may be delivered at the same time, and new ones
// before old ones.
func (a *Admin) SetPartitionsDespiteKeys(ctx context.Context, queue string, n int,
	progress func(done, total int)) (PartitionCounts, error) {
	return stream.Grow(ctx, a.redis.Client, a.prefix, queue, n, progress)
}

// MakeReady drains the due messages of a queue before it returns, without waiting for a bridge. Call it before you tell
// a caller that a message is there. Messages that a pause, a rate, a ready limit or a key holds back stay scheduled. It
// takes one round trip, and one for each partition and each 500 messages.
func (a *Admin) MakeReady(ctx context.Context, queue string) error {
	counts, err := a.Partitions(ctx, queue)
	if err != nil {
		return err
	}
	for _, name := range counts.Names(queue) {
		if err := lua.DrainDue(ctx, a.redis.Client, lua.NewKeys(a.prefix, name).As(a.Name())); err != nil {
			return fmt.Errorf("make %s ready: %w", queue, err)
		}
	}
	return nil
}
