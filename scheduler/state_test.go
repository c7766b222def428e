package scheduler

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The end of an outage that the heartbeat alone had told was told by every queue, and a queue whose type of key was wrong behind an outage
// said nothing but that it works again. By level Info, each end has its beginning, and each beginning its end.
func TestEveryEndOfATroubleHasItsBeginning(t *testing.T) {
	t.Parallel()
	quiet, loud := lua.ErrUnavailable, lua.ErrWrongType
	for _, c := range []struct {
		what string
		told []error
		want string
	}{
		{"quiet only", []error{quiet, nil, quiet, quiet, nil}, ""},
		{"loud only", []error{loud, loud, nil, nil, loud, nil}, "failing again failing again"},
		{"quiet, then loud", []error{quiet, loud, nil}, "failing again"},
		{"loud, then quiet", []error{loud, quiet, loud, nil}, "failing again"},
		{"never failed", []error{nil, nil}, ""},
		{"quiet after loud", []error{loud, nil, quiet, nil}, "failing again"},
	} {
		var log lines
		st := &state{log: slog.New(slog.NewTextHandler(&log, nil)), what: "drain", quiet: func(err error) bool { return errors.Is(err, quiet) }}
		for _, err := range c.told {
			st.report(err)
		}
		if got := turns(&log); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// turns returns the last words of a log.
func turns(log *lines) string {
	var words []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "is failing") {
			words = append(words, "failing")
		} else if strings.Contains(line, "works again") {
			words = append(words, "again")
		}
	}
	return strings.Join(words, " ")
}

// Two goroutines that report one state: its lines come by turns, and in the order of its changes.
func TestLinesOfOneStateComeByTurns(t *testing.T) {
	t.Parallel()
	var log lines
	st := &state{log: slog.New(slog.NewTextHandler(&log, nil)), what: "drain"}
	var reporters sync.WaitGroup
	for range 8 {
		reporters.Go(func() {
			for i := range 2000 {
				st.report([]error{lua.ErrWrongType, nil}[i%2])
			}
		})
	}
	reporters.Wait()
	st.report(nil)
	got := turns(&log)
	if n := strings.Count(got, "failing"); got != strings.TrimSpace(strings.Repeat("failing again ", n)) {
		t.Errorf("not by turns: %.200s", got)
	}
}

// A read that failed for a key that was left out since is no more: it said that it is failing, and for ever nothing.
func TestReadThatEndsSaysSo(t *testing.T) {
	t.Parallel()
	var log lines
	w := newTestWaker(t, redistest.Shared(t), "some", make(chan string, 1))
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	w.stateOf("a").report(lua.ErrWrongType)
	w.stateOf("b").report(nil)
	w.forget([]wakeGroup{{keys: []string{"b", "c"}}})
	if got := turns(&log); got != "failing again" || len(w.states) != 1 {
		t.Errorf("%q, %d states", got, len(w.states))
	}
}
