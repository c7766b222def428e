package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// Story is the history of a message, from the histories of queues: see [inspect.Story].
type Story = inspect.Story

// Change is one change of state of a message: see [inspect.Change].
type Change = inspect.Change

// StoryOptions control Story; the zero value is valid: see [inspect.StoryOptions].
type StoryOptions = inspect.StoryOptions

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
var ErrNoHistory = inspect.ErrNoHistory

// ErrUntold: the histories have no entry about the message.
var ErrUntold = inspect.ErrUntold

// Story returns the history of a message, even of one that is gone, from the histories of queues that keep one.
// ErrNoHistory: none does. ErrUntold: none has an entry about the message. Changes by plain commands, such as
// XREADGROUP or XACK, are not in it. Story reads the whole histories, in bounded steps.
func (a *Admin) Story(ctx context.Context, id string, o StoryOptions) (Story, error) {
	return inspect.ReadStory(ctx, a.redis.Client, a.prefix, id, o)
}
