package messages_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// cancel says of each message whether it was cancelled. If some of several were not scheduled, the exit code is
// exit.Partly.
func TestCancelSaysWhatItCancelled(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, id := range []string{"a", "b", "c"} {
		c.OK("schedule", "q", "--id", id, "--in", "1h", "x")
	}
	if out := c.OK("cancel", "q", "a"); out != "a  cancelled\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"hint: it became ready"}, "cancel", "q", "a")
	r := c.Fails(exit.Partly, []string{"not scheduled: 1 of 3 messages", "--running also cancels"}, "cancel", "q",
		"b", "a", "c", "--json")
	var answers []messages.Cancelled
	clitest.Decode(t, r.Out, &answers)
	// ID, Cancelled, Retries.
	if fmt.Sprint(answers) != "[{b true []} {a false []} {c true []}]" {
		t.Error(answers)
	}
	if n := c.Scheduled("q"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Cancel also finds the waiting retries of a message, of one group or of all groups.
func TestCancelTakesRetriesThatWait(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	due := time.Now().Add(time.Hour)
	c.Retries("q", "a", due, "g", "h", "i")
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.Fails(exit.NotFound, nil, "cancel", "q", "a", "--group", "nobody")
	if out := c.OK("cancel", "q", "a", "--group", "g"); !strings.HasPrefix(out,
		"a  cancelled: retry for g that was due ") ||
		strings.Contains(out, ",") {
		t.Error(out)
	}
	// Without a flag, cancel looks for retries only if the message itself is not scheduled.
	if out := c.OK("cancel", "q", "a"); out != "a  cancelled\n" {
		t.Error(out)
	}
	var answers []messages.Cancelled
	c.JSON(&answers, "cancel", "q", "a")
	if len(answers) != 1 || !answers[0].Cancelled || len(answers[0].Retries) != 2 ||
		answers[0].Retries[0].Due.UnixMilli() != due.UnixMilli() {
		t.Errorf("%+v", answers)
	}
	c.Fails(exit.NotFound, nil, "cancel", "q", "a")
	c.Retries("q", "b", due, "g")
	c.OK("schedule", "q", "--id", "b", "--in", "1h", "x")
	if out := c.OK("cancel", "q", "b", "--retries"); !strings.HasPrefix(out,
		"b  cancelled: retry for g") || c.Scheduled("q") != 0 {
		t.Errorf("%s%d are left", out, c.Scheduled("q"))
	}
	c.Fails(exit.Invalid, nil, "cancel", "q", "b", "--retries", "--group", "g")
}

// With --running, a message is cancelled in any state, and each message gets a verdict.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	client, k := c.Server.Client(t), lua.NewKeys(c.Prefix, "q")
	do := func(words ...string) {
		t.Helper()
		if err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for _, group := range []string{"g", "h"} {
		do("XGROUP", "CREATE", k.Stream, group, "0", "MKSTREAM")
	}
	do("XADD", k.Stream, "*", "id", "held", "payload", "p", "attempt", "1")
	do("XREADGROUP", "GROUP", "g", "web-1", "STREAMS", k.Stream, ">")
	do("XREADGROUP", "GROUP", "h", "web-2", "STREAMS", k.Stream, ">")
	do("XADD", k.Stream, "*", "id", "ready", "payload", "p", "attempt", "1")
	c.OK("schedule", "q", "--id", "later", "--in", "1h", "x")
	r := c.Fails(exit.Partly, []string{"group g has not read 1 of 1 message yet"},
		"cancel", "q", "ready", "--running", "--group", "g")
	redistest.Want(t, "unread", r.Out, "ready  unread\n")
	redistest.Want(t, "for one group", c.OK("cancel", "q", "held", "--running", "--group", "g"),
		"held  cancelling, web-1 of g\n")
	r = c.Fails(exit.Partly, []string{"group g has not read 1 of 1 message yet"},
		"cancel", "q", "later", "--running", "--group", "g")
	redistest.Want(t, "what waits for its time", r.Out, "later  unread\n")
	r = c.Fails(exit.Partly, []string{"not found: 1 of 4 messages"},
		"cancel", "q", "held", "ready", "later", "nobody", "--running")
	redistest.Want(t, "all", r.Out,
		"held  cancelling, web-1 of g, web-2 of h\nready  cancelled\nlater  cancelled\nnobody  not found\n")
	var answers []messages.CancelledRunning
	c.JSON(&answers, "cancel", "q", "held", "--running")
	if len(answers) != 1 || answers[0].Verdict != bridge.VerdictCancelling || len(answers[0].Holders) != 2 {
		t.Errorf("%+v", answers)
	}
	c.Fails(exit.NotFound, nil, "cancel", "q", "nobody", "--running")
	c.Fails(exit.NotFound, []string{"--running also cancels a message"}, "cancel", "q", "held")
	const cancelMark = "10000000000" // beginning of the mark in a cancelled entry's delivery count, which is internal
	for _, command := range [][]string{{"pending", "q", "g"}, {"find", "held"}} {
		if out := c.OK(command...); !strings.Contains(out, "cancelled") || strings.Contains(out, cancelMark) {
			t.Errorf("%s: %s", command[0], out)
		}
	}
	if out := c.OK("export", "q"); !strings.Contains(out, `"count":0`) {
		t.Errorf("exported a cancelled message: %s", out)
	}
	c.Fails(exit.Invalid, nil, "cancel", "q", "held", "--running", "--retries")
}
