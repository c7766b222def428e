package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
)

// QueueMemory is the memory that a queue takes, by samples of its keys, as in Sizes.Memory.
type QueueMemory struct {
	Queue string
	Bytes int64 // -1: the server does not tell it
}

// Memory returns the memory of queues, the greatest first. It sends ten commands for each partition. If there are more
// than maxPartitions, it first counts the messages of all queues with one Look of a Watcher. Then it takes the queues
// with the most messages, and skips a queue whose partitions would exceed maxPartitions in total. left is the number of
// skipped queues.
func (a *Admin) Memory(ctx context.Context, maxPartitions int) (all []QueueMemory, left int, err error) {
	registry, err := lua.ReadRegistry(ctx, a.redis.Client, lua.NewGlobals(a.prefix))
	if err != nil {
		return nil, 0, fmt.Errorf("read the memory of queues: %w", err)
	}
	queues := slices.Sorted(maps.Keys(registry))
	partitions := 0
	for _, queue := range queues {
		partitions += len(registry[queue].Names(queue))
	}
	if partitions > maxPartitions {
		counts, err := a.countMessages(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("count the messages of queues: %w", err)
		}
		slices.SortStableFunc(queues, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	}
	var names []string
	for _, queue := range queues {
		parts := registry[queue].Names(queue)
		if len(names)+len(parts) > maxPartitions {
			left++
			continue
		}
		names = append(names, parts...)
		all = append(all, QueueMemory{queue, -1})
	}
	sums, err := sizes.Memory(ctx, a.redis.Client, a.prefix, names)
	if err != nil {
		return nil, 0, fmt.Errorf("read the memory of queues: %w", err)
	}
	at := 0
	for i := range all {
		for range registry[all[i].Queue].Names(all[i].Queue) {
			if sums[at] >= 0 {
				all[i].Bytes = max(0, all[i].Bytes) + sums[at]
			}
			at++
		}
	}
	slices.SortStableFunc(all, func(a, b QueueMemory) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all, left, nil
}

// countMessages returns the number of messages of each queue. A queue that cannot be read is missing.
func (a *Admin) countMessages(ctx context.Context) (map[string]int64, error) {
	samples, err := a.Watcher().Look(ctx)
	counts := map[string]int64{}
	for _, s := range samples {
		counts[s.Queue] = s.Scheduled + s.Entries + s.Dead
	}
	return counts, err
}
