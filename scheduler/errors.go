package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/duestream/duestream/lua"
)

// What callers branch on, beside lua.ErrInvalid, lua.ErrFull and the other sentinels of package lua.
var (
	// ErrDuplicate: the ID is scheduled already, or was taken inside its dedup window. The message was not stored.
	ErrDuplicate = errors.New("duplicate message ID")
	// ErrNotScheduled: no message with this ID is scheduled: it became ready, was cancelled, or never was.
	ErrNotScheduled = errors.New("message is not scheduled")
	// ErrUncertain: the call failed, or its context ended, after it had been sent: it may have been executed or not. A message with
	// an ID and a dedup window may be scheduled again without harm.
	ErrUncertain = errors.New("the call may have been executed")
	// ErrClosed: Close was called before.
	ErrClosed = errors.New("producer is closed")
	// ErrRefused: the stream refused an entry. What was refused stays scheduled.
	ErrRefused = errors.New("stream refuses entries")
	// ErrDeadRefused: the stream of dead letters refused one. The message stays scheduled, a minute later.
	ErrDeadRefused = errors.New("stream of dead letters refuses entries")
)

// uncertain reports whether a failed call may have been executed.
func uncertain(err error) bool {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return false // there was no connection to send it on
	}
	return lua.Ambiguous(err)
}

// hint says what an operator should check next.
func hint(err error) string {
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrDeadRefused) {
		return "look at the stream with XINFO STREAM: its last ID may be at the maximum"
	}
	if errors.Is(err, ErrOccupied) {
		return "compare both with ZSCORE and HGET, and take away the one that is not wanted"
	}
	return lua.Hint(err)
}

// state logs the changes between working and failing, each once.
type state struct {
	log     *slog.Logger // carries what it is about
	what    string       // "drain"
	quiet   func(error) bool
	failing atomic.Bool
}

// report takes the outcome of a pass, and says whether the state changed.
func (s *state) report(err error) bool {
	if s.failing.Swap(err != nil) == (err != nil) {
		return false
	}
	level := slog.LevelWarn
	if err == nil {
		s.log.Info(s.what + " works again")
		return true
	}
	if s.quiet != nil && s.quiet(err) {
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, s.what+" is failing", "error", err, "hint", hint(err))
	return true
}
