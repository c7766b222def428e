package sizes

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
	Entry     string      `json:"entry"`
	Partition int         `json:"partition,omitempty"`
	ID        string      `json:"id,omitempty"` // of the message; empty if the body of the entry was deleted
	Consumer  string      `json:"consumer"`
	Idle      view.Millis `json:"idle_ms"` // since the entry was delivered or extended
	Since     time.Time   `json:"since"`   // when the entry became ready
	Held      view.Millis `json:"held_ms"` // since HeldSince; a lower bound
	// HeldSince is when the entry was delivered to Consumer. It is exact if a bridge saw the entry before the consumer
	// extended it for the first time. Otherwise it is later: the time of the first extension that was seen, or of the
	// last extension.
	HeldSince  time.Time `json:"held_since"`
	Deliveries int64     `json:"deliveries"`
	Cancelled  bool      `json:"cancelled,omitempty"` // the message was cancelled; its consumer is told, and ends it
	Attempt    int       `json:"attempt,omitempty"`
	BodyLost   bool      `json:"body_lost,omitempty"`
}

// pendingEntryOf converts an entry of a pending list, with the notes of bridges about its group. now is the server's
// clock.
func pendingEntryOf(partition int, p view.Pending, notes lua.HeldNotes, now time.Time) PendingEntry {
	id, since := p.ID.String(), p.Since(notes, now)
	return PendingEntry{Entry: id, Partition: partition, Consumer: p.Consumer, Idle: view.Millis(p.Idle),
		Since: view.Shown(lua.EntryTime(id)), Held: view.Millis(max(0, now.Sub(since))), HeldSince: since,
		Deliveries: p.Deliveries, Cancelled: p.Cancelled}
}

// PendingFilter selects pending entries. Zero fields do not restrict.
type PendingFilter struct {
	Consumer string
	MinIdle  time.Duration
}

// Pending lists at most limit pending entries of a group, oldest first, of all partitions. lua.ErrNoGroup: the group
// does not exist. It takes two round trips per partition, one per 100 entries, and one for about 256 KiB of bodies.
func Pending(ctx context.Context, c rueidis.Client, prefix, queue, group string, f PendingFilter,
	limit int) ([]PendingEntry, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	names := counts.Names(queue)
	pages := view.PendingRange{Count: min(pendingPage, limit), Consumer: f.Consumer, MinIdle: f.MinIdle}
	lists, err := readWithGroup(prefix, names, func(i int, keys lua.Keys) (list []PendingEntry, err error) {
		if limit <= 0 {
			return nil, nil
		}
		notes, err := view.ReadHeldNotes(ctx, c, keys, group)
		if err != nil {
			return nil, err
		}
		now, err := view.ServerTimeOf(ctx, c, keys.Stream)
		if err != nil {
			return nil, err
		}
		for p, err := range view.WalkPending(ctx, c, keys.Stream, group, pages) {
			if err != nil {
				return nil, err
			}
			list = append(list, pendingEntryOf(i, p, notes, now))
			if len(list) == limit {
				break
			}
		}
		return list, nil
	})
	all := append([]PendingEntry{}, slices.Concat(lists...)...) // not nil: JSON shows an empty list
	if err == nil {
		slices.SortStableFunc(all, comparePending)
		all = all[:max(0, min(limit, len(all)))]
		bodies := make([][]*PendingEntry, len(names))
		for i := range all {
			p := &all[i]
			bodies[p.Partition] = append(bodies[p.Partition], p)
		}
		err = view.EachPartition(names, func(i int, name string) error {
			return readBodies(ctx, c, lua.NewKeys(prefix, name).Stream, bodies[i])
		})
	}
	if err != nil {
		return nil, pendingFailed(queue, group, err)
	}
	return all, nil
}

// pendingFailed adds queue and group to an error. It drops the server's text for a missing group.
func pendingFailed(queue, group string, err error) error {
	if errors.Is(err, lua.ErrNoGroup) {
		return fmt.Errorf("group %s of queue %s: %w", group, queue, lua.ErrNoGroup)
	}
	return fmt.Errorf("pending of %s/%s: %w", queue, group, err)
}

// PendingCount returns the number of pending entries of a group in all partitions. If consumer is not "", it counts
// only the entries of that consumer. lua.ErrNoGroup: the group does not exist. It takes one round trip per partition.
func PendingCount(ctx context.Context, c rueidis.Client, prefix, queue, group, consumer string) (int64, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	lists, err := readWithGroup(prefix, counts.Names(queue), func(_ int, keys lua.Keys) (map[string]int64, error) {
		pending, err := rueidiscompat.NewAdapter(c).XPending(ctx, keys.Stream, group).Result()
		if rueidis.IsRedisNil(err) { // nothing is pending
			err = nil
		}
		return pending.Consumers, lua.Classify("XPENDING "+keys.Stream, err)
	})
	if err != nil {
		return 0, pendingFailed(queue, group, err)
	}
	total := int64(0)
	for _, counts := range lists {
		for name, n := range counts {
			if consumer == "" || name == consumer {
				total += n
			}
		}
	}
	return total, nil
}

// readWithGroup is view.ReadPartitions for a group that may be missing in some partitions. lua.ErrNoGroup: the group is
// missing in all partitions.
func readWithGroup[T any](prefix string, names []string, read func(i int, keys lua.Keys) (T, error)) ([]T, error) {
	var missing atomic.Int64 // partitions
	return view.ReadPartitions(prefix, names, func(i int, keys lua.Keys) (T, error) {
		result, err := read(i, keys)
		if errors.Is(err, lua.ErrNoGroup) && int(missing.Add(1)) < len(names) {
			err = nil // only the last partition returns the error
		}
		return result, err
	})
}

// comparePending orders pending entries by age, oldest first.
func comparePending(a, b PendingEntry) int { return view.CompareEntries(a.Entry, b.Entry) }

// readBodies reads the bodies of entries, and sets ID and Attempt, or BodyLost.
func readBodies(ctx context.Context, c rueidis.Client, key string, list []*PendingEntry) error {
	pager := view.NewPager()
	for len(list) > 0 {
		batch := list[:min(pager.Count, len(list))]
		list = list[len(batch):]
		ids := make([]string, len(batch))
		for i, p := range batch {
			ids[i] = p.Entry
		}
		found, bytes, err := view.ReadEach(ctx, c, key, ids)
		if err != nil {
			return err
		}
		for i, p := range batch {
			if p.BodyLost = found[i].ID == ""; !p.BodyLost {
				e := lua.ParseEntry(found[i].ID, found[i].FieldValues)
				p.ID, p.Attempt = e.ID, e.Attempt
			}
		}
		pager.Seen(len(batch), bytes)
	}
	return nil
}
