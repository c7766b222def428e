package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

// Story is the history of a message, from the histories of queues: see [lookup.Story].
type Story = lookup.Story

// Change is one change of state of a message: see [lookup.Change].
type Change = lookup.Change

// StoryOptions control Story; the zero value is valid: see [lookup.StoryOptions].
type StoryOptions = lookup.StoryOptions

// Events of a Change.
const (
	EventScheduled    = lua.EventScheduled    // stored as a new message, or in place of one with its ID
	EventRescheduled  = lua.EventRescheduled  // moved to another due time
	EventCancelled    = lua.EventCancelled    // the message, or if the Change has a group, one of its retries
	EventReady        = lua.EventReady        // drained: added to the stream
	EventAcknowledged = lua.EventAcknowledged // by a group
	EventRetried      = lua.EventRetried      // scheduled again for the group in which it failed or was abandoned
	EventReleased     = lua.EventReleased     // scheduled again for the group at once, with the same attempt
	EventSnoozed      = lua.EventSnoozed      // scheduled again after a handler's delay, with the same attempt
	EventDead         = lua.EventDead         // dead-lettered
	EventRedriven     = lua.EventRedriven     // scheduled again from a dead letter
)

// ErrNoHistory: none of the queues keeps a history. To keep one, set History with WritePolicy.
var ErrNoHistory = lookup.ErrNoHistory

// ErrUntold: the histories have no entry about the message.
var ErrUntold = lookup.ErrUntold

// Story returns the history of a message, even of one that is gone, from the histories of queues that keep one.
// ErrNoHistory: none does. ErrUntold: none has an entry about the message. Changes by plain commands, such as
// XREADGROUP or XACK, are not in it. Story reads the whole histories, in bounded steps.
func (a *Admin) Story(ctx context.Context, id string, o StoryOptions) (Story, error) {
	return lookup.ReadStory(ctx, a.redis.Client, a.prefix, id, o)
}

// Latencies are distributions of waits, from the history of a queue: see [lookup.Latencies].
type Latencies = lookup.Latencies

// GroupLatencies are the waits of the entries of one group: see [lookup.GroupLatencies].
type GroupLatencies = lookup.GroupLatencies

// Distribution counts waits in buckets, with percentiles: see [lookup.Distribution].
type Distribution = lookup.Distribution

// Latencies returns how long messages waited from due to ready, from ready to their delivery, and from ready to their
// acknowledgement, by the newest records of the queue's history: at most 1,000 entries, or about 256 KiB. From and
// Until tell from when to when the records reach. ErrNoHistory: the queue keeps no history. If nothing was recorded
// yet, the distributions are empty.
func (a *Admin) Latencies(ctx context.Context, queue string) (Latencies, error) {
	return lookup.ReadLatencies(ctx, a.redis.Client, a.prefix, queue)
}

// MaxRecent is the greatest number of changes that Recent returns.
const MaxRecent = lookup.MaxRecent

// Recent holds the newest changes of the history of a queue: see [lookup.Recent].
type Recent = lookup.Recent

// RecentChange is a recorded change, with the ID of its message: see [lookup.RecentChange].
type RecentChange = lookup.RecentChange

// Recent returns the newest n changes of the history of a queue, 1 to 1,000: what became of its last messages, also of
// those that are gone. It reads at most 1,000 entries of the history, or about 256 KiB. ErrNoHistory: the queue keeps
// no history. If nothing was recorded yet, there are no changes.
func (a *Admin) Recent(ctx context.Context, queue string, n int) (Recent, error) {
	return lookup.ReadRecent(ctx, a.redis.Client, a.prefix, queue, n)
}
