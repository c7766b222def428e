package stream

import (
	"context"
	"errors"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The trace that a handler sets for its attempt must be passed to the next attempt, also if the handler panicked or
// released the message. A trace that does not parse is ignored: the last good one stays.
func TestAttemptIsToldTheTraceOfTheLastOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"retry_min_ms": "1", "retry_max_ms": "2"})
	traces := []string{
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "no traceparent", "",
	}
	told := make(chan string, len(traces)+1)
	n := 0
	r.start(WorkerConfig{Concurrency: 1, Handler: func(_ context.Context, m *Message) error {
		told <- m.Extra[lua.FieldLastTrace]
		if n == len(traces) {
			return nil
		}
		n++
		m.Trace = traces[n-1]
		switch n {
		case 1:
			panic("boom")
		case 2:
			return Release(nil)
		}
		return RetryAfter(0, errors.New("no"))
	}})
	r.Ready("m")
	redistest.Want(t, "trace of the first delivery", <-told, "")
	for i, want := range []string{traces[0], traces[1], traces[2], traces[2], traces[2]} {
		for len(told) == 0 && t.Context().Err() == nil { // wait until the retry is scheduled
			r.DrainAll()
		}
		redistest.Want(t, traces[i], <-told, want)
	}
}
