package admin

import (
	"context"
	"time"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
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

// Flow holds the release limits of a queue, and whether its workers are paused: see [sizes.Flow].
type Flow = sizes.Flow

// Sizes are the figures of a queue that Stats and a Watcher share: see [sizes.Sizes].
type Sizes = sizes.Sizes

// GroupSizes are the figures of a group that Stats and a Watcher share: see [sizes.GroupSizes].
type GroupSizes = sizes.GroupSizes

// QueueStats is the state of a queue, over all its partitions: see [sizes.QueueStats].
type QueueStats = sizes.QueueStats

// GroupStats is the backlog of one group: see [sizes.GroupStats].
type GroupStats = sizes.GroupStats

// PartitionStats is the state of one partition of a queue: see [sizes.PartitionStats].
type PartitionStats = sizes.PartitionStats

// PendingFilter selects pending entries; the zero value selects all: see [sizes.PendingFilter].
type PendingFilter = sizes.PendingFilter

// PendingEntry is an entry that a consumer holds: see [sizes.PendingEntry].
type PendingEntry = sizes.PendingEntry

// Stats returns the state of a queue and of its groups. A count that would take long stops at a bound and is marked as
// approximate. A queue that does not exist looks like an empty one: CheckKnown tells them apart.
func (a *Admin) Stats(ctx context.Context, queue string) (QueueStats, error) {
	return sizes.Stats(ctx, a.redis.Client, a.prefix, queue)
}

// Pending lists at most limit entries that a group's consumers hold, over all partitions, oldest entry first.
// ErrNoGroup: there is no such group.
func (a *Admin) Pending(ctx context.Context, queue, group string, f PendingFilter, limit int) ([]PendingEntry, error) {
	return sizes.Pending(ctx, a.redis.Client, a.prefix, queue, group, f, limit)
}

// Histogram is the number of members of a schedule in each of several spans of due times: see [sizes.Histogram].
type Histogram = sizes.Histogram

// MaxBars is the greatest number of bars of a Histogram.
const MaxBars = sizes.MaxBars

// DueHistogram counts the members of a queue's schedule by their due times, over all partitions. It counts in 1 to
// MaxBars bars of the same length; the first bar begins at from. It also counts the members that are overdue, due
// before the first bar, due after the last bar, or waiting for their ordering keys. A step is 1 ms to 10 years.
// DueBetween lists the members of a bar. The cost for each partition is one round trip of bars + 4 commands, each
// O(log m) for a schedule of m members.
func (a *Admin) DueHistogram(
	ctx context.Context, queue string, from time.Time, step time.Duration, bars int,
) (Histogram, error) {
	return sizes.DueHistogram(ctx, a.redis.Client, a.prefix, queue, from, step, bars)
}

// QueueForecast is the work that a queue has now and will have within a time: see [sizes.QueueForecast].
type QueueForecast = sizes.QueueForecast

// GroupForecast is the work of one group: see [sizes.GroupForecast].
type GroupForecast = sizes.GroupForecast

// Forecast returns the work that a queue has now and will have within a time: for each group its lag and its pending
// entries, and the scheduled messages that are due now or within the time, which is 0 to 10 years. Use it to start
// workers before the messages are due. If group is not "", only this group counts. If this group does not exist, it
// counts as a group that is created at 0. A queue that does not exist looks like an empty one: CheckKnown tells them
// apart. Forecast takes two round trips, and one of six commands for each partition, and reads no message. If the
// server does not know the lag of a group, it also reads at most 1,000 entries and 2 MiB, in at most 16 partitions.
func (a *Admin) Forecast(ctx context.Context, queue, group string, within time.Duration) (QueueForecast, error) {
	return sizes.Forecast(ctx, a.redis.Client, a.prefix, queue, group, within)
}
