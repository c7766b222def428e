package admin

import (
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
)

// ErrNoQueue: nobody registered the queue, and it has no keys.
var ErrNoQueue = scheduler.ErrNoQueue

// ErrNoGroup: the consumer group does not exist.
var ErrNoGroup = lua.ErrNoGroup

// ErrNotEmpty: the queue that was to be deleted holds messages.
var ErrNotEmpty = stream.ErrNotEmpty

// ErrShrink: a queue was to have fewer partitions than it has.
var ErrShrink = stream.ErrShrink
