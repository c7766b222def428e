package admin

import (
	"context"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/inspect"
)

// Story is what the histories of queues tell of a message.
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

// StoryOptions changes what Story does.
//
//	type StoryOptions struct {
//		Queues   []string                  // where to look; none = all that are registered
//		Progress func(looked, total int64) // called now and then, one at a time; total grows
//	}
type StoryOptions = inspect.StoryOptions

// Events of a Change.
const (
	EventScheduled    = lua.EventScheduled    // for the first time, or over one with its ID
	EventRescheduled  = lua.EventRescheduled  // to another due time
	EventCancelled    = lua.EventCancelled    // it, or with a group one of its retries
	EventReady        = lua.EventReady        // drained: added to the stream
	EventAcknowledged = lua.EventAcknowledged // by a group
	EventRetried      = lua.EventRetried      // scheduled again for the group in which it failed, or was abandoned
	EventReleased     = lua.EventReleased     // scheduled again for the group, without having used up an attempt
	EventSnoozed      = lua.EventSnoozed      // put off by its handler, without having used up an attempt
	EventDead         = lua.EventDead         // a dead letter now
	EventRedriven     = lua.EventRedriven     // a dead letter was scheduled again
)

// ErrNoHistory: none of the queues keeps a history. WritePolicy with History has one keep it.
var ErrNoHistory = inspect.ErrNoHistory

// ErrUntold: the histories tell nothing of a message.
var ErrUntold = inspect.ErrUntold

// Story returns what became of a message, also of one that is gone, by the histories of queues that keep one. ErrNoHistory: none
// does; ErrUntold: they tell nothing of it. What was done by plain commands, an XREADGROUP or XACK, is not in it. It reads all
// that the histories hold, in bounded steps.
func (a *Admin) Story(ctx context.Context, id string, o StoryOptions) (Story, error) {
	return inspect.ReadStory(ctx, a.redis.Client, a.prefix, id, o)
}
