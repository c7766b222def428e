package stream

import (
	"errors"
	"time"
)

// Verdict is the kind of an Outcome.
type Verdict string

// Verdicts, one for each way in which a handler may return.
const (
	VerdictAcknowledge Verdict = "acknowledge" // nil
	VerdictRetry       Verdict = "retry"       // any other error, and RetryAfter
	VerdictDeadLetter  Verdict = "dead_letter" // DeadLetter
	VerdictSnooze      Verdict = "snooze"      // Snooze
	VerdictRelease     Verdict = "release"     // Release
)

// Outcome is what a handler asked for by the error that it returned.
type Outcome struct {
	Verdict Verdict
	Delay   time.Duration // until the next delivery, of Snooze and RetryAfter; -1 = the worker or the policy decides
	Err     error         // the handler's own error; nil when it gave none
}

// OutcomeOf tells what a worker does with a message whose handler returned err. Tests of handlers use it. Whether a retry becomes
// a dead letter depends on the attempts that are left, which the error does not tell.
func OutcomeOf(err error) Outcome {
	var after *retryAfter
	var dead *deadLetter
	var given *release
	var later *snooze
	switch {
	case err == nil:
		return Outcome{Verdict: VerdictAcknowledge, Delay: -1}
	case errors.As(err, &later):
		return Outcome{Verdict: VerdictSnooze, Delay: later.delay}
	case errors.As(err, &given):
		return Outcome{Verdict: VerdictRelease, Delay: -1, Err: given.err}
	case errors.As(err, &dead):
		return Outcome{Verdict: VerdictDeadLetter, Delay: -1, Err: dead.err}
	case errors.As(err, &after):
		return Outcome{Verdict: VerdictRetry, Delay: after.delay, Err: after.err}
	}
	return Outcome{Verdict: VerdictRetry, Delay: -1, Err: err}
}
