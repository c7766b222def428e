package producer

import (
	"errors"

	"github.com/duestream/duestream/lua"
)

// Errors that callers branch on, beside lua.ErrInvalid, lua.ErrFull and the other sentinels of package lua.
var (
	// ErrDuplicate: the ID is scheduled already, or is in its dedup window. The message was not stored.
	ErrDuplicate = errors.New("duplicate message ID")
	// ErrNotScheduled: no message with this ID is scheduled: it became ready, was cancelled, or never existed.
	ErrNotScheduled = errors.New("message is not scheduled")
	// ErrUncertain: the call failed, or its context ended, after it was sent: it may have been executed. A message with
	// an ID and a dedup window may be scheduled again without harm.
	ErrUncertain = errors.New("the call may have been executed")
	// ErrClosed: the producer is closed.
	ErrClosed = errors.New("producer is closed")
)

// uncertain reports whether a failed call may have been executed.
func uncertain(err error) bool { return lua.Ambiguous(err) && !lua.Unsent(err) }
