package scheduler

import (
	"github.com/duestream/duestream/lua"
)

// lastIDHint tells the operator to look at the stream's last ID.
const lastIDHint = "look at the stream with XINFO STREAM: its last ID may be at the maximum"

// Errors of a drain whose stream takes no entry.
var (
	// ErrRefused: the stream refused an entry. The message stays scheduled.
	ErrRefused = lua.NewHinted("stream refuses entries", lastIDHint)
	// ErrDeadRefused: the stream of dead letters refused an entry. The message stays scheduled; it is due a minute
	// later.
	ErrDeadRefused = lua.NewHinted("stream of dead letters refuses entries", lastIDHint)
)
