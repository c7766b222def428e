package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
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

// state logs the changes between working and failing, each once: for those who read Info and above no line that it works again comes
// without one that it is failing before, nor stays away after one. Any number of goroutines may report.
type state struct {
	log     *slog.Logger // carries what it is about
	what    string       // "drain"
	quiet   func(error) bool
	failing atomic.Bool // changes under mu

	mu   sync.Mutex
	told bool // that it is failing, and not only at debug level
}

// report takes the outcome of a pass.
func (s *state) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.failing.Swap(err != nil) != (err != nil)
	if err == nil {
		if changed {
			s.log.Log(context.Background(), s.level(slog.LevelInfo, !s.told), s.what+" works again")
		}
		s.told = false
		return
	}
	quiet := s.quiet != nil && s.quiet(err)
	if changed || !quiet && !s.told {
		s.told = !quiet
		s.log.Log(context.Background(), s.level(slog.LevelWarn, quiet), s.what+" is failing", "error", err, "hint", hint(err))
	}
}

func (s *state) level(loud slog.Level, quiet bool) slog.Level {
	if quiet {
		return slog.LevelDebug
	}
	return loud
}
