package stream

import (
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/lua"
)

// turns returns what a log says of one condition, in order.
func (b *logBook) turns() (said []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		switch {
		case strings.Contains(line, "is failing"):
			said = append(said, "failing")
		case strings.Contains(line, "working again"):
			said = append(said, "again")
		}
	}
	return said
}

// A worker whose acknowledgements were denied read on: it said at every entry that it works again, and at every try that it is failing.
func TestConditionWorksAgainWhenAllOfItsPartsDo(t *testing.T) {
	t.Parallel()
	var book logBook
	c := condition{log: book.logger(), what: "worker"}
	c.workingAt(settling) // never failed
	c.failingAt(settling, lua.ErrDenied)
	for range 3 {
		c.working() // reads
		c.failingAt(settling, lua.ErrDenied)
	}
	c.failing(lua.ErrDenied) // the same trouble
	c.workingAt(settling)
	want(t, "while reads fail", slices.Equal(book.turns(), []string{"failing"}), true)
	c.working()
	c.working()
	want(t, "in the end", slices.Equal(book.turns(), []string{"failing", "again"}), true)
}

// What was stuck became a dead letter, and nothing was pending any more: the reclaimer's loop ended before two visibility timeouts had
// passed, and nobody said that it works again.
func TestWhatIsNoLongerStuckIsToldAtOnceWhenNothingIsPending(t *testing.T) {
	t.Parallel()
	var book logBook
	r := &Reclaimer{stuck: condition{log: book.logger(), what: "dead-lettering of abandoned entries"}}
	held := ReclaimResult{Visibility: 1 << 40, stream: streamInfo{groups: []groupInfo{{pending: 1}}}}
	stuck := held
	stuck.Stuck = 1
	r.reportStuck(stuck)
	r.reportStuck(held)
	want(t, "while it is pending", slices.Equal(book.turns(), []string{"failing"}), true)
	r.reportStuck(ReclaimResult{})
	want(t, "in the end", slices.Equal(book.turns(), []string{"failing", "again"}), true)
}
