package admin

import (
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
)

// ErrNoQueue: nobody registered the queue, and it has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

// ErrNotFound: Redis does not hold the message, or the dead letter: it was acknowledged by every group, cancelled or purged, or
// never existed.
var ErrNotFound = deadletter.ErrNotFound

// ErrNoGroup: the consumer group does not exist.
var ErrNoGroup = lua.ErrNoGroup

// ErrNotEmpty: the queue that was to be deleted holds messages, recurrences or push targets.
var ErrNotEmpty = stream.ErrNotEmpty

// ErrNoTarget: the group of the queue has no target of callbacks.
var ErrNoTarget = push.ErrNoTarget

// ErrOneKey: the old signing key was to be dropped, and the target has one alone.
var ErrOneKey = push.ErrOneKey

// ErrShrink: a queue was to have fewer partitions than it has.
var ErrShrink = stream.ErrShrink

// ErrKeyed: a queue was to get more partitions, and holds messages with a key: new messages of a key would be delivered beside
// them.
var ErrKeyed = stream.ErrKeyed

// Hint says what an operator should check next, of errors that come from the server; "" of others.
func Hint(err error) string { return lua.Hint(err) }
