package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

const pendingPage = 100

// PendingEntry is one entry that a consumer holds.
type PendingEntry struct {
	Entry      string      `json:"entry"`
	Partition  int         `json:"partition,omitempty"` // in which the entry is
	ID         string      `json:"id,omitempty"`        // of the message; empty when the body was deleted
	Consumer   string      `json:"consumer"`
	Idle       view.Millis `json:"idle_ms"` // since it was delivered or extended
	Since      time.Time   `json:"since"`   // when the entry became ready
	Deliveries int64       `json:"deliveries"`
	Attempt    int         `json:"attempt,omitempty"`
	BodyLost   bool        `json:"body_lost,omitempty"`
}

// PendingFilter selects pending entries. What is zero does not restrict.
type PendingFilter struct {
	Consumer string
	MinIdle  time.Duration
}

// Pending lists at most limit entries that a group holds, oldest first, of all partitions. lua.ErrNoGroup: there is no such
// group. One round trip per partition and 100 entries, and further ones for their bodies, of which about 256 KiB are read at a
// time.
func Pending(ctx context.Context, c rueidis.Client, prefix, queue, group string, f PendingFilter,
	limit int) ([]PendingEntry, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	names := counts.Names(queue)
	lists := make([][]PendingEntry, len(names))
	var missing atomic.Int64
	err = view.EachPartition(names, func(i int, name string) (err error) {
		lists[i], err = pendingEntries(ctx, c, lua.NewKeys(prefix, name).Stream, group, f, limit)
		if errors.Is(err, lua.ErrNoGroup) && int(missing.Add(1)) < len(names) {
			err = nil // it exists in another partition
		}
		for k := range lists[i] {
			lists[i][k].Partition = i
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pending of %s/%s: %w", queue, group, err)
	}
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, comparePending)
	all = all[:max(0, min(limit, len(all)))]
	err = view.EachPartition(names, func(i int, name string) error {
		return readBodies(ctx, c, lua.NewKeys(prefix, name).Stream, i, all)
	})
	if err != nil {
		return nil, fmt.Errorf("pending of %s/%s: %w", queue, group, err)
	}
	return append([]PendingEntry{}, all...), nil
}

// PendingCount says how many entries a group holds in all partitions, or with a consumer, how many that one holds.
// lua.ErrNoGroup: there is no such group. One round trip per partition.
func PendingCount(ctx context.Context, c rueidis.Client, prefix, queue, group, consumer string) (int64, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return 0, err
	}
	names := counts.Names(queue)
	var total, missing atomic.Int64
	err = view.EachPartition(names, func(_ int, name string) error {
		n, err := pendingCount(ctx, c, lua.NewKeys(prefix, name).Stream, group, consumer)
		total.Add(n)
		if errors.Is(err, lua.ErrNoGroup) && int(missing.Add(1)) < len(names) {
			return nil // it exists in another partition
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("pending of %s/%s: %w", queue, group, err)
	}
	return total.Load(), nil
}

func pendingCount(ctx context.Context, c rueidis.Client, key, group, consumer string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	reply, err := c.Do(ctx, c.B().Xpending().Key(key).Group(group).Build()).ToArray()
	if err != nil {
		return 0, lua.Classify("XPENDING "+key, err)
	}
	if consumer == "" || len(reply) < 4 || reply[3].IsNil() {
		if len(reply) == 0 {
			return 0, nil
		}
		n, err := reply[0].AsInt64()
		if consumer != "" {
			n = 0
		}
		return n, err
	}
	list, err := reply[3].ToArray()
	if err != nil {
		return 0, fmt.Errorf("XPENDING %s: unexpected reply: %w", key, err)
	}
	for _, one := range list {
		pair, err := one.AsStrSlice()
		if err != nil || len(pair) != 2 {
			return 0, fmt.Errorf("XPENDING %s: unexpected reply", key)
		}
		if pair[0] == consumer {
			var n int64
			_, err := fmt.Sscan(pair[1], &n)
			return n, err
		}
	}
	return 0, nil
}

// comparePending orders by age. IDs that cannot be read are as old as can be.
func comparePending(a, b PendingEntry) int {
	x, _ := view.ParseEntryID(a.Entry)
	y, _ := view.ParseEntryID(b.Entry)
	return x.Compare(y)
}

// pendingEntries lists what a group holds in one partition, without what the bodies say.
func pendingEntries(ctx context.Context, c rueidis.Client, key, group string, f PendingFilter,
	limit int) ([]PendingEntry, error) {
	all := []PendingEntry{}
	for from := "-"; len(all) < limit; {
		count := min(pendingPage, limit-len(all))
		page, err := readPendingPage(ctx, c, rueidiscompat.XPendingExtArgs{
			Stream: key, Group: group, Idle: f.MinIdle, Start: from, End: "+", Count: int64(count), Consumer: f.Consumer,
		})
		if err != nil {
			return nil, err
		}
		for _, p := range page {
			all = append(all, PendingEntry{
				Entry: p.ID, Consumer: p.Consumer, Idle: view.Millis(p.Idle), Since: lua.EntryTime(p.ID),
				Deliveries: p.RetryCount,
			})
		}
		if len(page) < count {
			break
		}
		from = "(" + page[len(page)-1].ID
	}
	return all, nil
}

// readPendingPage asks by the adapter, which takes any mixture of conditions. Only what operators use may: whoever imports
// bridge would fetch the modules of its tests.
func readPendingPage(
	ctx context.Context, c rueidis.Client, of rueidiscompat.XPendingExtArgs,
) ([]rueidiscompat.XPendingExt, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	page, err := rueidiscompat.NewAdapter(c).XPendingExt(ctx, of).Result()
	if err != nil && !rueidis.IsRedisNil(err) {
		return nil, lua.Classify("XPENDING "+of.Stream, err)
	}
	return page, nil
}

// readBodies fills in what the entries of one partition themselves say.
func readBodies(ctx context.Context, c rueidis.Client, key string, partition int, all []PendingEntry) error {
	var list []*PendingEntry
	for i := range all {
		if all[i].Partition == partition {
			list = append(list, &all[i])
		}
	}
	size := view.NewPager()
	for len(list) > 0 {
		batch := list[:min(size.Count, len(list))]
		list = list[len(batch):]
		cmds := make([]rueidis.Completed, len(batch))
		for i, p := range batch {
			cmds[i] = c.B().Xrange().Key(key).Start(p.Entry).End(p.Entry).Build()
		}
		bytes := 0
		call, cancel := context.WithTimeout(ctx, loop.PassTimeout)
		replies := c.DoMulti(call, cmds...)
		cancel()
		for i, reply := range replies {
			found, err := reply.AsXRangeSlices()
			if err != nil {
				return lua.Classify("XRANGE "+key, err)
			}
			if batch[i].BodyLost = len(found) == 0; batch[i].BodyLost {
				continue
			}
			e := lua.ParseEntry(found[0].ID, found[0].FieldValues)
			batch[i].ID, batch[i].Attempt = e.ID, e.Attempt
			bytes += view.EntrySize(found[0])
		}
		size.Seen(len(batch), bytes)
	}
	return nil
}
