package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/lua"
)

// Message is one delivery of a message to a handler. The handler owns it until it returns.
type Message struct {
	ID       string // message ID; the entry ID if another program added the entry without a message ID
	Payload  []byte
	Headers  map[string]string // nil when there are none
	Attempt  int               // from 1
	Queue    string
	Group    string
	Consumer string

	Partition   int       // of the queue; entry IDs are unique within one partition
	EntryID     string    // of the stream entry
	Due         time.Time // zero = the entry does not say it
	MaxAttempts int       // the message's own limit; 0 = the policy's limit counts
	Expires     time.Time // zero = never
	For         string    // the only group that a retry is for; empty = every group
	Error       string    // of the last failed attempt

	// Progress is the cursor that the group's last attempt stored with SaveProgress. If that attempt stored none, it is
	// the cursor of the attempts before; nil = none. SaveProgress replaces it. The handler must not change its bytes.
	Progress []byte

	// Extra holds fields that this version does not know, unchanged, and fields that handlers rarely need
	// (docs/reference/protocol.md lists them): "first_due_ms", "last_trace", …
	Extra map[string]string

	// Trace is the traceparent of this attempt. A handler may set it; the next attempt, or the dead letter, has it in
	// Extra["last_trace"]. Package bridge/tracing does so. A text that is not a traceparent is dropped.
	Trace string

	saver progressSaver // zero if no worker delivered the message
}

// Lateness returns how long after its due time the entry was added to the stream, by the server's clock. For a retry it
// counts from the due time of the retry.
func (m *Message) Lateness() time.Duration {
	if m.Due.IsZero() {
		return 0
	}
	return max(0, lua.EntryTime(m.EntryID).Sub(m.Due))
}

// Handler handles one message. Its result decides the next step:
//
//   - nil: acknowledged, so this group never gets the message again;
//   - an error: delivered again after the policy's delay, or dead-lettered when its attempts are used up;
//   - RetryAfter: like an error, with a delay that the handler chooses;
//   - DeadLetter: dead-lettered at once;
//   - Snooze: delivered again after a delay, and no attempt is counted;
//   - Release: delivered again at once, to whoever asks first, and no attempt is counted.
//
// A panic counts as an error with its stack. Messages are delivered at least once: a handler may see one again, and
// must not rely on order. context.Cause tells why ctx was cancelled: ErrLost, ErrUnreachable, ErrHandlerTimeout,
// ErrCancelled or ErrStopping.
type Handler func(ctx context.Context, m *Message) error

// Causes of a handler's cancelled context.
var (
	// ErrLost: the entry was reclaimed, or its body was deleted. The handler's result has no effect.
	ErrLost = errors.New("delivery lost: the entry was reclaimed or its body deleted")
	// ErrUnreachable: no extend has succeeded for a visibility timeout; another consumer may have the message now.
	ErrUnreachable = errors.New("delivery may be lost: not extended for a whole visibility timeout")
	// ErrCancelled: somebody cancelled the message. Whatever the handler returns, the group is done with it.
	ErrCancelled = errors.New("message cancelled")
	// ErrStopping: the worker's ShutdownTimeout is over.
	ErrStopping = errors.New("worker is stopping")
	// ErrHandlerTimeout: the handler has used up its time. Its attempt has failed unless it still returns nil. If it
	// does not return within AbandonAfter it is abandoned, and its result has no effect.
	ErrHandlerTimeout = errors.New("handler timeout is over")
)

type retryAfter struct {
	delay time.Duration
	err   error
}

func (e *retryAfter) Error() string {
	return fmt.Sprintf("retry after %s: %v", e.delay, e.err)
}
func (e *retryAfter) Unwrap() error { return e.err }

// RetryAfter returns an error with which the message is delivered again after d, unless its attempts are used up. d is
// limited to 0 to ten years. A nil err is recorded as "retry requested".
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("retry requested")
	}
	return &retryAfter{min(max(0, d), lua.MaxDelay), err}
}

type deadLetter struct{ err error }

func (e *deadLetter) Error() string { return e.err.Error() }
func (e *deadLetter) Unwrap() error { return e.err }

// DeadLetter returns an error with which the message is dead-lettered at once; err is recorded as the dead letter's
// error. A nil err is recorded as "dead letter requested".
func DeadLetter(err error) error {
	if err == nil {
		err = errors.New("dead letter requested")
	}
	return &deadLetter{err}
}

type release struct{ err error }

func (e *release) Error() string { return e.err.Error() }
func (e *release) Unwrap() error { return e.err }

// Release returns an error with which the message is given back unchanged: it is delivered again at once, with the same
// attempt. It is for a worker that is about to stop, and for work that could not begin for a reason outside the
// message. A worker that keeps reading gets the message again at once, without end. A nil err is recorded as
// "released".
func Release(err error) error {
	if err == nil {
		err = errors.New("released")
	}
	return &release{err}
}

type snooze struct{ delay time.Duration }

func (e *snooze) Error() string { return "snoozed for " + e.delay.String() }

// Snooze returns an error with which the message is delivered again after d, with the same attempt: it has not failed,
// but is not to be handled yet. d is limited to 0 to ten years. The policy limits the number of snoozes of a message
// (default 1,000); one more makes a dead letter with reason "max_snoozes".
func Snooze(d time.Duration) error { return &snooze{min(max(0, d), lua.MaxDelay)} }

// FailureOf returns how to settle an entry whose handler returned err. err must not be nil.
func FailureOf(err error) lua.Failure {
	outcome := OutcomeOf(err)
	f := lua.Failure{Action: lua.ActionRetry, Delay: outcome.Delay, Reason: lua.ReasonMaxAttempts, Error: err.Error()}
	switch outcome.Action {
	case ActionSnooze:
		return lua.Failure{Action: lua.ActionSnooze, Delay: outcome.Delay, Reason: lua.ReasonMaxSnoozes}
	case ActionRelease:
		return lua.Failure{Action: lua.ActionRelease, Delay: -1}
	case ActionDeadLetter:
		f.Action, f.Reason, f.Error = lua.ActionDead, lua.ReasonDeadLetter, outcome.Err.Error()
	case ActionRetry:
		f.Error = outcome.Err.Error()
	}
	return f
}
