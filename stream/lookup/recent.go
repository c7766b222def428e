package lookup

import (
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

// RecentChange is a recorded change, with the ID of its message.
type RecentChange struct {
	ID string `json:"id,omitempty"` // "" = the records that were read tell only the entry
	Change
}

// Recent holds the newest changes of the history of a queue.
type Recent struct {
	At      time.Time      `json:"at"`             // when the history was read, by the server's clock
	Changes []RecentChange `json:"changes"`        // newest first
	More    bool           `json:"more,omitempty"` // there are older changes
}

// MaxRecent is the greatest number of changes that ReadRecent returns.
const MaxRecent = 1000

// ReadRecent returns the newest n changes of the history of a queue, over all its partitions. It reads at most 1,000
// entries, or about 256 KiB, of which each partition has an equal share. So it returns fewer than n changes if one
// partition has most of them, and never an older change in place of a newer one. Changes that a history does not record
// are missing: see ReadStory. ErrNoHistory: the queue keeps no history. A history without records gives no changes.
func ReadRecent(ctx context.Context, c rueidis.Client, prefix, queue string, n int) (Recent, error) {
	r := Recent{Changes: []RecentChange{}}
	if err := errors.Join(lua.CheckQueue(queue), lua.Between("n", n, 1, MaxRecent)); err != nil {
		return r, err
	}
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return r, err
	}
	if err := r.read(ctx, c, prefix, queue, counts.Names(queue), n); err != nil {
		return r, fmt.Errorf("recent changes of %s: %w", queue, err)
	}
	return r, nil
}

func (r *Recent) read(ctx context.Context, c rueidis.Client, prefix, queue string, names []string, n int) (err error) {
	if r.At, err = view.ServerTimeOf(ctx, c, lua.NewKeys(prefix, queue).History); err != nil {
		return err
	}
	more := make([]bool, len(names))
	ends := make([]time.Time, len(names)) // the oldest record that was read of a partition with older ones
	lists, err := view.ReadPartitions(prefix, names, func(i int, keys lua.Keys) ([]RecentChange, error) {
		records, older, err := newestRecords(ctx, c, keys.History, len(names))
		more[i] = older
		if older && len(records) > 0 {
			ends[i] = records[len(records)-1].At
		}
		return recentChanges(queue, records), err
	})
	if err != nil {
		return err
	}
	all := slices.Concat(lists...)
	// Before this time, changes of some partitions were not read, so those of the others would not be the newest ones.
	complete := slices.MaxFunc(ends, time.Time.Compare)
	all = slices.DeleteFunc(all, func(c RecentChange) bool { return c.At.Before(complete) })
	slices.SortStableFunc(all, func(a, b RecentChange) int { return b.At.Compare(a.At) })
	r.More = slices.Contains(more, true) || len(all) > n
	r.Changes = append(r.Changes, all[:min(n, len(all))]...)
	if len(all) > 0 {
		return nil
	}
	queuePolicy, _, err := policy.Read(ctx, c, prefix, queue, "")
	if err == nil && queuePolicy.History == 0 {
		err = ErrNoHistory
	}
	return err
}

// recentChanges returns the changes that the records of one partition tell. The records and the changes are sorted from
// the newest to the oldest. An acknowledgement by which a group skips a retry of another group is no change.
func recentChanges(queue string, records []lua.Told) (changes []RecentChange) {
	ids := map[string]string{} // of messages, by entry
	groups := map[string]string{}
	for _, record := range slices.Backward(records) {
		if record.ID != "" && record.ID != record.Entry && record.Entry != "" {
			ids[record.Entry] = record.ID
		}
		if record.Event == lua.EventReady {
			groups[record.Entry] = record.Group
		}
		group := groups[record.Entry]
		if record.Event == lua.EventAcknowledged && group != "" && group != record.Group {
			continue
		}
		one := RecentChange{ID: record.ID, Change: Change{
			Queue: queue, At: record.At, Event: record.Event, Group: record.Group, Attempt: record.Attempt,
			Due: view.Shown(record.Due), Was: view.Shown(record.Was), Idle: view.Millis(record.Idle),
			Entry: record.Entry, Letter: record.Letter, Reason: record.Reason, Error: record.Error,
			Consumer: record.Consumer, By: record.By,
		}}
		if one.ID == "" || one.ID == record.Entry {
			one.ID = ids[record.Entry]
		}
		if record.Event == lua.EventReady && record.Due.UnixMilli() > view.EarliestDue {
			one.Late = view.Millis(max(0, record.At.Sub(record.Due)))
		}
		readyAt := lua.EntryTime(record.Entry)
		if record.Event != lua.EventReady && readyAt.UnixMilli() > view.EarliestDue {
			one.After = view.Millis(max(0, record.At.Sub(readyAt)))
		}
		changes = append(changes, one)
	}
	slices.Reverse(changes)
	return changes
}
