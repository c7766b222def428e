package scheduler

import (
	"github.com/duestream/duestream/lua"
)

// atMaximum says what to check when a stream takes no entry.
const atMaximum = "look at the stream with XINFO STREAM: its last ID may be at the maximum"

// What a drain answers when a stream takes no entry.
var (
	// ErrRefused: the stream refused an entry. What was refused stays scheduled.
	ErrRefused = lua.NewHinted("stream refuses entries", atMaximum)
	// ErrDeadRefused: the stream of dead letters refused an entry. The message stays scheduled, due a minute later.
	ErrDeadRefused = lua.NewHinted("stream of dead letters refuses entries", atMaximum)
)
