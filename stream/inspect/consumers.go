package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Consumer is a consumer of a group, over all partitions of a queue.
type Consumer struct {
	Group      string `json:"group"`
	Consumer   string `json:"consumer"`
	Partitions []int  `json:"partitions"` // in which it reads, or has read
	Pending    int64  `json:"pending"`    // entries that it holds

	// Idle is the time since its last read or extend, in any partition. Before Redis 7.2 a read without entries does
	// not count. Inactive is the time since it was last given an entry; nil before Redis 7.2.
	Idle     view.Millis  `json:"idle_ms"`
	Inactive *view.Millis `json:"inactive_ms,omitempty"`

	// OldestIdle is the longest time that one of its entries was neither delivered nor extended. OldestApprox: it is a
	// lower bound, because only the oldest 10,000 pending entries of the group were read, in each partition.
	OldestIdle   view.Millis `json:"oldest_idle_ms"`
	OldestApprox bool        `json:"oldest_idle_approx,omitempty"`

	// Alive: Idle is less than the visibility timeout of the group. A consumer that is not alive may have died; if
	// Inactive is nil, it may also just have no work.
	Alive bool `json:"alive"`
}

const consumerEntries = 10_000 // pending entries of a group that are read in each partition, for OldestIdle

// Consumers lists the consumers of a queue's groups, or of one group, sorted by group and name, without the reclaimer.
// lua.ErrNoGroup: the given group does not exist. Two round trips per partition and group, and one more per 1,000
// pending entries.
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

func readConsumers(ctx context.Context, c rueidis.Client, prefix, queue, group string, names []string) ([]Consumer, error) {
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
			some, err := readMemberships(ctx, c, keys.Stream, g, i)
			if err != nil && !errors.Is(err, lua.ErrNoGroup) { // dropped just now
				return nil, err
			}
			list = append(list, some...)
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
	policies, _, err := stream.ReadPolicies(ctx, c, prefix, queue, all)
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
	merged := []Consumer{}
	at := map[[2]string]int{}
	for _, one := range list {
		i, known := at[[2]string{one.Group, one.Consumer}]
		if !known {
			at[[2]string{one.Group, one.Consumer}] = len(merged)
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

// readMemberships returns the consumers of a group in one partition.
func readMemberships(ctx context.Context, c rueidis.Client, key string, g view.GroupInfo, partition int) ([]Consumer, error) {
	consumers, err := view.ReadConsumers(ctx, c, key, g.Name)
	if err != nil {
		return nil, err
	}
	var list []Consumer
	for _, m := range consumers {
		if m.Name == lua.ReclaimConsumer {
			continue
		}
		one := Consumer{Group: g.Name, Consumer: m.Name, Partitions: []int{partition}, Pending: m.Pending,
			Idle: view.Millis(m.Idle)}
		if m.Inactive >= 0 {
			inactive := view.Millis(m.Inactive)
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

// oldestIdles returns, by consumer, the longest idle time of a pending entry.
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
