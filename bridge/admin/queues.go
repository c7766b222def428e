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

// QueueContents is what a queue holds, or held.
//
//	type QueueContents struct {
//		Scheduled int64
//		Entries   int64 // of the streams: ready, pending, or not freed yet
//		Dead      int64
//		Groups    []string
//		// "group/consumer" of those that were there within the last ten seconds: they will make the queue anew
//		Readers     []string
//		Recurrences []string
//		Targets     []string // groups whose messages are posted to a URL
//	}
//
//	func (QueueContents) Empty() bool
//	func (QueueContents) Messages() int64
//	func (QueueContents) String() string
type QueueContents = stream.Contents

// DeleteQueue removes a queue with its groups, settings and dedup windows, and with force also its messages,
// recurrences and push targets, and returns what it held. A producer that goes on scheduling, and a worker that goes on
// reading, make it again. Bridges do not. ErrNoQueue; ErrNotEmpty without force, and then the queue stays, with its
// groups and policy. A message that comes while it is being removed has it stay as well; dedup windows of partitions
// that were empty are gone then.
func (a *Admin) DeleteQueue(ctx context.Context, queue string, force bool) (QueueContents, error) {
	had, err := stream.DeleteQueue(ctx, a.redis.Client, a.prefix, queue, force)
	if errors.Is(err, stream.ErrUnknownQueue) {
		err = a.suggest(ctx, fmt.Errorf("delete queue %s: %w", queue, ErrNoQueue), queue)
	}
	return had, err
}

// RolledBack counts what RollBackQueue changed, and names the work that bridges of the release before leave undone.
//
//	type RolledBack struct {
//		Released    int64 // messages that waited for their key, and are due when they were to be
//		Recurrences int64 // that nobody plans who knows none
//	}
type RolledBack = stream.RolledBack

// ErrNewBridge: a bridge is alive that knows keys of messages, so messages would wait for them again. Nothing was changed.
var ErrNewBridge = stream.ErrNewBridge

// RollBackQueue makes all that is scheduled in a queue servable by bridges that know no keys of messages: what waits for its key
// is due when it was to be. Messages of one key may be delivered side by side from then on. ErrNewBridge, unless force. Repeat it
// after an error.
func (a *Admin) RollBackQueue(ctx context.Context, queue string, force bool) (RolledBack, error) {
	return stream.Rollback(ctx, a.redis.Client, a.prefix, queue, force)
}

// PartitionCounts holds every partition count that a queue ever had, in order. The last one is in force.
//
//	type PartitionCounts []int
//
//	func (PartitionCounts) Candidates(id string) []int
//	func (PartitionCounts) Latest() int
//	func (PartitionCounts) Names(queue string) []string
//	func (PartitionCounts) Of(id string) int
//	func (PartitionCounts) String() string
//	func (PartitionCounts) With(others ...int) PartitionCounts
type PartitionCounts = lua.Counts

// Partitions returns the partition counts of a queue; {1} for one that is not registered. One round trip.
func (a *Admin) Partitions(ctx context.Context, queue string) (PartitionCounts, error) {
	return stream.Partitions(ctx, a.redis.Client, a.prefix, queue)
}

// SetPartitions has a queue grow to n partitions, 1 to 256, also while it is in use, and returns all counts it ever had.
// Producers, bridges and workers take the count up within seconds. After an error repeat it; with the count in force it mends
// what one left. progress may be nil. ErrInvalid, ErrShrink. ErrKeyed: the queue holds messages with a key; nothing was changed.
// To find out, it reads the meta of all that is scheduled.
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

// SetPartitionsDespiteKeys is SetPartitions for a queue that holds messages with a key. What it holds stays where it is, and
// keeps its order; new messages go where their key belongs now. So until what was there before is done, its retries included,
// several messages of one key may be delivered at a time, and new ones before old ones.
func (a *Admin) SetPartitionsDespiteKeys(ctx context.Context, queue string, n int,
	progress func(done, total int)) (PartitionCounts, error) {
	return stream.Grow(ctx, a.redis.Client, a.prefix, queue, n, progress)
}

// MakeReady has what is due in a queue become ready before it returns, as a bridge would a moment later: call it before you tell
// somebody that a message is there. What a pause, a rate, a ready limit or a key holds back stays where it is. One round trip,
// and one for each partition and 500 messages.
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
