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
	Partitions []int  `json:"partitions"` // in which it reads, or once read
	Pending    int64  `json:"pending"`    // entries that it holds

	// Idle is how long ago it last read or extended something, in the partition where that was last; before Redis 7.2 a look that
	// found nothing does not count. Inactive is how long ago it was last given an entry; the server says so from Redis 7.2 on;
	// nil where no partition does.
	Idle     view.Millis  `json:"idle_ms"`
	Inactive *view.Millis `json:"inactive_ms,omitempty"`

	// OldestIdle is how long the entry that it neglects most was neither delivered nor extended. OldestApprox: at least; only the
	// oldest 10,000 entries of the group were looked at, in each partition.
	OldestIdle   view.Millis `json:"oldest_idle_ms"`
	OldestApprox bool        `json:"oldest_idle_approx,omitempty"`

	// Alive: Idle is less than the visibility timeout of the group. Who is not may have died, or, where Inactive is nil, have
	// nothing to do.
	Alive bool `json:"alive"`
}

const consumerEntries = 10_000 // pending entries of a group and partition that are looked at for how old they are

// Consumers lists the consumers of a queue's groups, or of one group, by group and name; the reclaimer's own are left out.
// lua.ErrNoGroup: the group asked for does not exist. Two round trips per partition and group, and one more per 1,000 entries
// that are pending.
func Consumers(ctx context.Context, c rueidis.Client, prefix, queue, group string) ([]Consumer, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	fail := func(err error) ([]Consumer, error) { return nil, fmt.Errorf("consumers of %s: %w", queue, err) }
	names := counts.Names(queue)
	lists, groups := make([][]Consumer, len(names)), make([][]string, len(names))
	err = view.EachPartition(names, func(i int, name string) error {
		key := lua.NewKeys(prefix, name).Stream
		info, err := view.ReadStream(ctx, c, key)
		if err != nil {
			return err
		}
		for _, g := range info.Groups {
			if group != "" && g.Name != group {
				continue
			}
			groups[i] = append(groups[i], g.Name)
			list, err := readMemberships(ctx, c, key, g, i)
			if errors.Is(err, lua.ErrNoGroup) {
				continue // dropped just now
			}
			if err != nil {
				return err
			}
			lists[i] = append(lists[i], list...)
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	all := slices.Concat(groups...)
	slices.Sort(all)
	all = slices.Compact(all)
	if group != "" && len(all) == 0 {
		return fail(lua.ErrNoGroup)
	}
	policies, _, err := stream.ReadPolicies(ctx, c, prefix, queue, all)
	if err != nil {
		return fail(err)
	}
	members := mergeMembers(slices.Concat(lists...))
	for i := range members {
		members[i].Alive = time.Duration(members[i].Idle) < policies[members[i].Group].VisibilityTimeout
	}
	return members, nil
}

func mergeMembers(list []Consumer) []Consumer {
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
	members, err := view.ReadConsumers(ctx, c, key, g.Name)
	if err != nil {
		return nil, err
	}
	var list []Consumer
	for _, m := range members {
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

// oldestIdles returns for each consumer how long the entry that it neglects most is idle.
func oldestIdles(ctx context.Context, c rueidis.Client, key,
	group string) (oldest map[string]time.Duration, complete bool, err error) {
	oldest = map[string]time.Duration{}
	from := "-"
	for read := 0; read < consumerEntries; {
		page, err := view.ReadPending(ctx, c, key, group, view.PendingRange{From: from, Count: view.PageEntries})
		if err != nil {
			return nil, false, err
		}
		for _, p := range page {
			oldest[p.Consumer] = max(oldest[p.Consumer], p.Idle)
		}
		if read += len(page); len(page) < view.PageEntries {
			return oldest, true, nil
		}
		from = "(" + page[len(page)-1].ID.String()
	}
	return oldest, false, nil
}
