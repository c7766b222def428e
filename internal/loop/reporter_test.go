package loop

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// An activity works again only when all of its parts do. Regression: a worker whose acknowledgements were denied, but
// which could read, logged "works again" at every read and "is failing" at every acknowledgement.
func TestConditionWorksAgainWhenAllOfItsPartsDo(t *testing.T) {
	t.Parallel()
	var book queuetest.LogBook
	c := Reporter{Log: book.Logger(), Activity: "worker"}
	c.ReportPart("settling", nil) // writes nothing, because the part never failed
	c.ReportPart("settling", lua.ErrDenied)
	for range 3 {
		c.Report(nil) // reads
		c.ReportPart("settling", lua.ErrDenied)
	}
	c.Report(lua.ErrDenied) // writes nothing, because the activity is failing already
	c.ReportPart("settling", nil)
	redistest.Want(t, "while reads fail", slices.Equal(book.Turns(), []string{"failing"}), true)
	c.Report(nil)
	c.Report(nil)
	redistest.Want(t, "when all works again", slices.Equal(book.Turns(), []string{"failing", "again"}), true)
}

// At level Info, each "works again" must follow an "is failing", and each "is failing" must be followed by a "works
// again". A quiet error writes no line at this level, because another part of the program reports it. Regression: only
// the heartbeat logged the beginning of an outage, but every queue logged its end.
func TestEveryEndOfATroubleHasItsBeginning(t *testing.T) {
	t.Parallel()
	quiet, loud := lua.ErrUnavailable, lua.ErrWrongType
	for _, c := range []struct {
		what string
		told []error // reported in this order; nil = it works
		want string  // the lines, in short
	}{
		{"quiet only", []error{quiet, nil, quiet, quiet, nil}, ""},
		{"loud only", []error{loud, loud, nil, nil, loud, nil}, "failing again failing again"},
		{"quiet, then loud", []error{quiet, loud, nil}, "failing again"},
		{"loud, then quiet", []error{loud, quiet, loud, nil}, "failing again"},
		{"never failed", []error{nil, nil}, ""},
		{"quiet after loud", []error{loud, nil, quiet, nil}, "failing again"},
	} {
		var log queuetest.LogBook
		st := &Reporter{Log: slog.New(slog.NewTextHandler(&log, nil)), Activity: "drain",
			Quiet: func(err error) bool { return errors.Is(err, quiet) }}
		for _, err := range c.told {
			st.Report(err)
		}
		if got := strings.Join(log.Turns(), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// Two goroutines report one state: "failing" and "works again" alternate, in the order of the changes.
func TestLinesOfOneStateComeByTurns(t *testing.T) {
	t.Parallel()
	var log queuetest.LogBook
	st := &Reporter{Log: slog.New(slog.NewTextHandler(&log, nil)), Activity: "drain"}
	var reporters sync.WaitGroup
	for range 8 {
		reporters.Go(func() {
			for i := range 2000 {
				st.Report([]error{lua.ErrWrongType, nil}[i%2])
			}
		})
	}
	reporters.Wait()
	st.Report(nil)
	got := strings.Join(log.Turns(), " ")
	if n := strings.Count(got, "failing"); got != strings.TrimSpace(strings.Repeat("failing again ", n)) {
		t.Errorf("not by turns: %.200s", got)
	}
}

// An activity that ends while it fails says so once. One that does not fail ends in silence.
func TestAnActivityThatEndsWhileItFailsSaysSo(t *testing.T) {
	t.Parallel()
	var book queuetest.LogBook
	c := Reporter{Log: book.Logger(), Activity: "upkeep"}
	c.End()
	c.Report(lua.ErrDenied)
	c.Report(nil)
	c.End()
	redistest.Want(t, "ends of an activity that works", book.Count("upkeep ended while it was failing"), 0)
	c.Report(lua.ErrDenied)
	c.End()
	c.End()
	c.Report(nil)
	redistest.Want(t, "ends of an activity that fails", book.Count("upkeep ended while it was failing"), 1)
	redistest.Want(t, "works again", book.Count("works again"), 1)
}
