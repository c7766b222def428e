package scheduler

import (
	"github.com/duestream/duestream/lua"
)

// atMaximum is the hint of both errors: it tells the operator to look at the stream's last ID.
const atMaximum = "look at the stream with XINFO STREAM: its last ID may be at the maximum"

// Errors of a drain whose stream takes no entry.
var (
	// ErrRefused: the stream refused an entry. The message stays scheduled.
	ErrRefused = lua.NewHinted("stream refuses entries", atMaximum)
	// ErrDeadRefused: the stream of dead letters refused an entry. The message stays scheduled, due a minute later.
	ErrDeadRefused = lua.NewHinted("stream of dead letters refuses entries", atMaximum)
)
