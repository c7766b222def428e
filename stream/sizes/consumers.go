package sizes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Consumer is a consumer of a group, over all partitions of a queue.
type Consumer struct {
	Group      string `json:"group"`
	Consumer   string `json:"consumer"`
	Partitions []int  `json:"partitions"` // in which the consumer reads, or has read
	Pending    int64  `json:"pending"`    // entries that the consumer holds

	// Idle is the time since the consumer last read, or extended an entry, in any partition. Before Redis 7.2 a read
	// that returns no entry does not count. Inactive is the time since the consumer was last given an entry; nil before
	// Redis 7.2.
	Idle     view.Millis  `json:"idle_ms"`
	Inactive *view.Millis `json:"inactive_ms,omitempty"`

	// OldestIdle is the longest time for which an entry of the consumer was neither delivered nor extended.
	// OldestApprox: OldestIdle is a lower bound, because only the oldest 10,000 pending entries of the group were read
	// in each partition.
	OldestIdle   view.Millis `json:"oldest_idle_ms"`
	OldestApprox bool        `json:"oldest_idle_approx,omitempty"`

	// Alive: Idle is less than the visibility timeout of the group. A consumer that is not alive may have died. If
	// Inactive is nil, the consumer may also have no work.
	Alive bool `json:"alive"`
}

const consumerEntries = 10_000 // pending entries of a group that are read in each partition, for OldestIdle

// Consumers lists the consumers of a queue's groups, sorted by group and name, without the reclaimer. If group is not
// "", it lists only the consumers of that group. lua.ErrNoGroup: the group does not exist. It takes two round trips per
// partition and group, and one more per 1,000 pending entries.
func Consumers(ctx context.Context, c rueidis.Client, prefix, queue, group string) ([]Consumer, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	consumers, err := readConsumers(ctx, c, prefix, queue, group, counts.Names(queue))
	if err != nil {
		return nil, fmt.Errorf("consumers of %s: %w", queue, err)
	}
	return consumers, nil
}

func readConsumers(
	ctx context.Context, c rueidis.Client, prefix, queue, group string, names []string,
) ([]Consumer, error) {
	groups := make([][]string, len(names))
	lists, err := view.ReadPartitions(prefix, names, func(i int, keys lua.Keys) (list []Consumer, err error) {
		info, err := view.ReadStream(ctx, c, keys.Stream)
		if err != nil {
			return nil, err
		}
		for _, g := range info.Groups {
			if group != "" && g.Name != group {
				continue
			}
			groups[i] = append(groups[i], g.Name)
			consumers, err := readGroupConsumers(ctx, c, keys.Stream, g, i)
			if err != nil && !errors.Is(err, lua.ErrNoGroup) { // ErrNoGroup: the group was dropped just now
				return nil, err
			}
			list = append(list, consumers...)
		}
		return list, nil
	})
	if err != nil {
		return nil, err
	}
	all := slices.Concat(groups...)
	slices.Sort(all)
	all = slices.Compact(all)
	if group != "" && len(all) == 0 {
		return nil, lua.ErrNoGroup
	}
	policies, _, err := policy.ReadGroups(ctx, c, prefix, queue, all)
	if err != nil {
		return nil, err
	}
	merged := mergeConsumers(slices.Concat(lists...))
	for i := range merged {
		one := &merged[i]
		one.Alive = time.Duration(one.Idle) < policies[one.Group].VisibilityTimeout
	}
	return merged, nil
}

// mergeConsumers merges the consumers of the same name from all partitions, sorted by group and name.
func mergeConsumers(list []Consumer) []Consumer {
	merged := []Consumer{} // not nil: JSON shows an empty list
	indexes := map[[2]string]int{}
	for _, one := range list {
		name := [2]string{one.Group, one.Consumer}
		i, known := indexes[name]
		if !known {
			indexes[name] = len(merged)
			merged = append(merged, one)
			continue
		}
		m := &merged[i]
		m.Partitions = append(m.Partitions, one.Partitions...)
		m.Pending += one.Pending
		m.Idle = min(m.Idle, one.Idle)
		if m.Inactive == nil || one.Inactive != nil && *one.Inactive < *m.Inactive {
			m.Inactive = one.Inactive
		}
		m.OldestIdle = max(m.OldestIdle, one.OldestIdle)
		m.OldestApprox = m.OldestApprox || one.OldestApprox
	}
	slices.SortFunc(merged, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Consumer, b.Consumer))
	})
	return merged
}

// readGroupConsumers returns the consumers of a group in one partition.
func readGroupConsumers(
	ctx context.Context, c rueidis.Client, key string, g view.GroupInfo, partition int,
) ([]Consumer, error) {
	replies, err := view.ReadConsumers(ctx, c, key, g.Name)
	if err != nil {
		return nil, err
	}
	var list []Consumer
	for _, reply := range replies {
		if reply.Name == lua.ReclaimConsumer {
			continue
		}
		one := Consumer{Group: g.Name, Consumer: reply.Name, Partitions: []int{partition}, Pending: reply.Pending,
			Idle: view.Millis(reply.Idle)}
		if reply.Inactive >= 0 {
			inactive := view.Millis(reply.Inactive)
			one.Inactive = &inactive
		}
		list = append(list, one)
	}
	if len(list) == 0 || g.Pending == 0 {
		return list, nil
	}
	oldest, complete, err := oldestIdles(ctx, c, key, g.Name)
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].OldestIdle = view.Millis(oldest[list[i].Consumer])
		list[i].OldestApprox = !complete && list[i].Pending > 0
	}
	return list, nil
}

// oldestIdles returns, by consumer, the longest idle time of its pending entries. complete is false if the group has
// more pending entries than were read.
func oldestIdles(ctx context.Context, c rueidis.Client, key,
	group string) (oldest map[string]time.Duration, complete bool, err error) {
	oldest = map[string]time.Duration{}
	read := 0
	for p, err := range view.WalkPending(ctx, c, key, group, view.PendingRange{Count: view.PageEntries}) {
		if err != nil {
			return nil, false, err
		}
		oldest[p.Consumer] = max(oldest[p.Consumer], p.Idle)
		if read++; read == consumerEntries {
			return oldest, false, nil
		}
	}
	return oldest, true, nil
}
