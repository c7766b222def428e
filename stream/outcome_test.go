package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// OutcomeOf tells other programs what a worker would do with an error of its handler, so both must read the error in
// the same way, also if the error is wrapped.
func TestOutcomeOfAnErrorIsWhatTheWorkerDoes(t *testing.T) {
	cause := errors.New("no route")
	for _, c := range []struct {
		err    error
		want   Outcome
		action lua.Action
	}{
		{nil, Outcome{ActionAcknowledge, -1, nil}, ""},
		{cause, Outcome{ActionRetry, -1, cause}, lua.ActionRetry},
		{context.Canceled, Outcome{ActionRetry, -1, context.Canceled}, lua.ActionRetry},
		{RetryAfter(time.Minute, cause), Outcome{ActionRetry, time.Minute, cause}, lua.ActionRetry},
		{RetryAfter(-time.Minute, cause), Outcome{ActionRetry, 0, cause}, lua.ActionRetry},
		{DeadLetter(cause), Outcome{ActionDeadLetter, -1, cause}, lua.ActionDead},
		{Snooze(time.Hour), Outcome{ActionSnooze, time.Hour, nil}, lua.ActionSnooze},
		{Release(cause), Outcome{ActionRelease, -1, cause}, lua.ActionRelease},
	} {
		redistest.Want(t, fmt.Sprint(c.err), OutcomeOf(c.err), c.want)
		if c.err == nil {
			continue
		}
		wrapped := fmt.Errorf("charge: %w", c.err)
		redistest.Want(t, "wrapped: "+c.err.Error(), OutcomeOf(wrapped).Action, c.want.Action)
		failure := FailureOf(wrapped)
		redistest.Want(t, "action of "+c.err.Error(), failure.Action, c.action)
		redistest.Want(t, "delay of "+c.err.Error(), failure.Delay, c.want.Delay)
	}
}
