package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// Story is the history of a message, from the histories of queues.
//
//	type Story struct {
//		ID      string
//		At      time.Time // by the server's clock, when it was read
//		Changes []Change
//		Queues  int   // how many have a history
//		Looked  int64 // how many entries of histories were read
//	}
type Story = inspect.Story

// Change is one change of state of a message.
//
//	type Change struct {
//		Queue    string
//		At       time.Time // by the server's clock
//		Event    string    // one of the Event constants
//		Group    string
//		Attempt  int
//		Due      time.Time // from then on
//		Was      time.Time // rescheduled: due before
//		Late     Millis    // ready: after it was due
//		After    Millis    // how an entry ended: after it was ready
//		Idle     Millis    // how an entry ended: after it was delivered, or last extended
//		Entry    string
//		Letter   string
//		Reason   string
//		Error    string
//		Consumer string // who held the entry, where somebody else ended that
//		By       string // who did it
//	}
type Change = inspect.Change

// StoryOptions controls Story.
//
//	type StoryOptions struct {
//		Queues   []string                  // where to look; none = all that are registered
//		Progress func(looked, total int64) // called now and then, one at a time; total grows
//	}
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
