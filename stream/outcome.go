package stream

import (
	"errors"
	"time"
)

// Action is the next step of a message after its handler returned.
type Action string

// Actions, one for each kind of result of a handler.
const (
	ActionAcknowledge Action = "acknowledge" // nil
	ActionRetry       Action = "retry"       // any other error, and RetryAfter
	ActionDeadLetter  Action = "dead_letter" // DeadLetter
	ActionSnooze      Action = "snooze"      // Snooze
	ActionRelease     Action = "release"     // Release
)

// Outcome is the next step that a handler chose by the error that it returned.
type Outcome struct {
	Action Action
	Delay  time.Duration // of Snooze and RetryAfter, until the next delivery; -1: the worker or the policy decides
	Err    error         // the handler's own error; nil if there is none
}

// OutcomeOf returns the next step of a message whose handler returned err. It is for tests of handlers. Whether a retry
// becomes a dead letter depends on the remaining attempts, which the error does not tell.
func OutcomeOf(err error) Outcome {
	var after *retryAfter
	var dead *deadLetter
	var given *release
	var later *snooze
	switch {
	case err == nil:
		return Outcome{Action: ActionAcknowledge, Delay: -1}
	case errors.As(err, &later):
		return Outcome{Action: ActionSnooze, Delay: later.delay}
	case errors.As(err, &given):
		return Outcome{Action: ActionRelease, Delay: -1, Err: given.err}
	case errors.As(err, &dead):
		return Outcome{Action: ActionDeadLetter, Delay: -1, Err: dead.err}
	case errors.As(err, &after):
		return Outcome{Action: ActionRetry, Delay: after.delay, Err: after.err}
	}
	return Outcome{Action: ActionRetry, Delay: -1, Err: err}
}
