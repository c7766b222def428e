package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// Time returns the time of the server that holds a queue; messages of the queue are due and expire by that clock. For
// "" it returns the time of the server that answers first.
func (a *Admin) Time(ctx context.Context, queue string) (time.Time, error) {
	if queue == "" {
		return view.ServerTime(ctx, a.redis.Client)
	}
	if err := lua.CheckQueue(queue); err != nil {
		return time.Time{}, err
	}
	return view.ServerTimeOf(ctx, a.redis.Client, lua.NewKeys(a.prefix, queue).Due)
}

// Flow holds a queue's release limits, which apply to each partition: rate, burst and ready limit. It also tells
// whether the queue's workers are paused.
//
//	type Flow struct {
//		Rate        bridge.Rate
//		ReadyLimit  int
//		HeldWorkers bool
//	}
//
//	func (Flow) Limited() bool
type Flow = inspect.Flow

// QueueStats is the state of a queue, over all its partitions. Counts are of messages, entries or dead letters. Sizes
// are in bytes. Times are by the server's clock.
//
//	type QueueStats struct {
//		Queue      string
//		Partitions int
//		Held       bool
//		Flow
//		Scheduled     int64 // with retries, and with what is overdue
//		Overdue       int64
//		OldestOverdue Millis
//		Stalled       Millis    // for how long messages have been overdue while nothing became ready
//		NextDue       time.Time // the earliest due time that is still to come
//		WaitForKey    int64     // of what is scheduled: due, and another message of their key is in flight
//		Turns         int64     // notes of keys: one for each message in flight, and for each that waits
//		LooksSeconds  int64     // due times that look like seconds where milliseconds belong
//		// Ready is how many entries at least one group has not been given yet; all, when there are no groups.
//		Ready        int64
//		ReadyApprox  bool
//		Entries      int64 // of the stream: ready, pending, and acknowledged but not freed yet
//		Dead         int64
//		DedupWindows int64
//		// how old the newest dead letter is; nil: there is none, or no group
//		NewestDead *Millis
//		Groups     []GroupStats
//		// per key, by the last part of its name; absent where the server does not say
//		Memory      map[string]int64
//		Policy      bridge.Policy // for groups without settings of their own
//		Warnings    []string
//		ByPartition []PartitionStats // of a queue that has more than one
//	}
type QueueStats = inspect.QueueStats

// GroupStats is the backlog of one group.
//
//	type GroupStats struct {
//		Name string
//		// Lag is how many entries the group has not been given yet. It is counted, because the server's own figure is
//		// wrong after entries were deleted out of order: from the oldest entry on and from the newest on, until one count
//		// reaches the group's last delivered entry. LagApprox: neither did within 10,000 entries or 2 MiB; then Lag is
//		// the server's figure, or an upper bound where it has none.
//		Lag       int64
//		LagApprox bool
//		// Waiting is for how long the oldest of those entries has waited, at least; nil: none waits. Unread: and for how
//		// long while no consumer of the group read, in the partition where that is longest.
//		Waiting       *Millis
//		Unread        *Millis
//		Pending       int64
//		OldestPending *PendingEntry // the oldest entry, not the one that is idle for longest
//		// OldestHeld is the entry that is held for longest, of the oldest ones of each partition. Usual is how long
//		// deliveries took lately, in the partition where they took longest; nil: not known.
//		OldestHeld *PendingEntry
//		Usual      *Millis
//		Consumers  int64 // each counts once, in however many partitions it reads
//		// Retrying is how many retries are scheduled for the group. RetryingApprox: projected from the first 50,000
//		// members of the schedule.
//		Retrying       int64
//		RetryingApprox bool
//		// Dead is how many dead letters the group has. DeadApprox: of the newest 10,000 letters or 2 MiB only.
//		Dead       int64
//		DeadApprox bool
//		Policy     bridge.Policy
//	}
type GroupStats = inspect.GroupStats

// PartitionStats is the state of one partition of a queue.
//
//	type PartitionStats struct {
//		Partition   int
//		Scheduled   int64
//		Overdue     int64
//		Ready       int64
//		ReadyApprox bool
//		Entries     int64
//		Pending     int64 // of all groups
//		Dead        int64
//		Memory      *int64 // absent where the server does not say
//	}
type PartitionStats = inspect.PartitionStats

// PendingFilter selects pending entries. The zero value selects all.
//
//	type PendingFilter struct {
//		Consumer string
//		MinIdle  time.Duration
//	}
type PendingFilter = inspect.PendingFilter

// PendingEntry is an entry that a consumer holds.
//
//	type PendingEntry struct {
//		Entry     string
//		Partition int    // in which the entry is
//		ID        string // of the message; empty when the body was deleted
//		Consumer  string
//		Idle      Millis    // since it was delivered or extended
//		Since     time.Time // when the entry became ready
//		Held      Millis    // since it was delivered to Consumer, at least: see HeldSince
//		// HeldSince is when the entry was delivered to Consumer. It is known exactly when a bridge looked at the entry
//		// before the consumer extended it for the first time; else it is the first extension that was seen, or the last
//		// one.
//		HeldSince  time.Time
//		Deliveries int64
//		Cancelled  bool // the message was: the consumer is told, and ends it
//		Attempt    int
//		BodyLost   bool
//	}
type PendingEntry = inspect.PendingEntry

// Stats returns the state of a queue and of its groups. A count that would take long stops at a bound and is marked as
// approximate. An unknown queue is empty: use CheckKnown to tell.
func (a *Admin) Stats(ctx context.Context, queue string) (QueueStats, error) {
	return inspect.Stats(ctx, a.redis.Client, a.prefix, queue)
}

// Pending lists at most limit entries that a group's consumers hold, over all partitions, oldest entry first.
// ErrNoGroup.
func (a *Admin) Pending(ctx context.Context, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return inspect.Pending(ctx, a.redis.Client, a.prefix, queue, group, f, limit)
}
