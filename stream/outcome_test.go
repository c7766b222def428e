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

func TestOutcomeOfAnErrorIsWhatTheWorkerDoes(t *testing.T) {
	cause := errors.New("no route")
	for _, c := range []struct {
		err    error
		want   Outcome
		action lua.Action
	}{
		{nil, Outcome{VerdictAcknowledge, -1, nil}, ""},
		{cause, Outcome{VerdictRetry, -1, cause}, lua.ActionRetry},
		{context.Canceled, Outcome{VerdictRetry, -1, context.Canceled}, lua.ActionRetry},
		{RetryAfter(time.Minute, cause), Outcome{VerdictRetry, time.Minute, cause}, lua.ActionRetry},
		{RetryAfter(-time.Minute, cause), Outcome{VerdictRetry, 0, cause}, lua.ActionRetry},
		{DeadLetter(cause), Outcome{VerdictDeadLetter, -1, cause}, lua.ActionDead},
		{Snooze(time.Hour), Outcome{VerdictSnooze, time.Hour, nil}, lua.ActionSnooze},
		{Release(cause), Outcome{VerdictRelease, -1, cause}, lua.ActionRelease},
	} {
		redistest.Want(t, fmt.Sprint(c.err), OutcomeOf(c.err), c.want)
		if c.err == nil {
			continue
		}
		wrapped := fmt.Errorf("charge: %w", c.err)
		redistest.Want(t, "wrapped: "+c.err.Error(), OutcomeOf(wrapped).Verdict, c.want.Verdict)
		failure := FailureOf(wrapped)
		redistest.Want(t, "action of "+c.err.Error(), failure.Action, c.action)
		redistest.Want(t, "delay of "+c.err.Error(), failure.Delay, c.want.Delay)
	}
}
