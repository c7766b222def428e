package admin

import (
	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/await"
	"github.com/duestream/duestream/stream/deadletter"
)

// ErrNoQueue: the queue is not registered and has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

// ErrNotFound: Redis does not hold the message or dead letter. It was acknowledged by every group, cancelled or
// purged, or it never existed.
var ErrNotFound = deadletter.ErrNotFound

// ErrNotDone: the message is scheduled or ready, or the group works on it.
var ErrNotDone = await.ErrNotDone

// ErrNoGroup: the consumer group does not exist.
var ErrNoGroup = lua.ErrNoGroup

// ErrNotEmpty: the queue that was to be deleted holds messages, recurrences or push targets.
var ErrNotEmpty = stream.ErrNotEmpty

// ErrNoTarget: the group of the queue has no target of callbacks.
var ErrNoTarget = push.ErrNoTarget

// ErrOneKey: the target has no old signing key to drop.
var ErrOneKey = push.ErrOneKey

// ErrTargetChanged: somebody else has changed the target since the caller read it. Nothing was written.
var ErrTargetChanged = push.ErrChanged

// ErrPolicyChanged: somebody else has changed the settings since the caller read them. Nothing was written.
var ErrPolicyChanged = stream.ErrPolicyChanged

// ErrShrink: the number of partitions of a queue cannot be reduced.
var ErrShrink = stream.ErrShrink

// ErrKeyed: the number of partitions of a queue was not changed, because the queue holds messages with an ordering key.
// In another partition, new messages of the key would not wait for the old ones.
var ErrKeyed = stream.ErrKeyed

// Hint returns what an operator should check next after an error of the server; "" for any other error.
func Hint(err error) string { return lua.Hint(err) }
