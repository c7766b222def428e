package queues_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
	"github.com/duestream/duestream/integration/redistest"
)

// A paused queue keeps its due messages scheduled, and its ready messages are still delivered. resume makes the due
// ones ready. An unknown queue is refused, or created by --create.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	c.OK("queue", "partitions", "a", "--create", "2")
	c.OK("schedule", "b", "--id", "ready", "x")
	if out := c.OK("pause", "a"); out != "a  paused: scheduled messages wait; ready messages are still delivered\n" {
		t.Error(out)
	}
	if out := c.OK("pause", "--all"); out != "a  was paused already\nb  paused: scheduled messages wait; "+
		"ready messages are still delivered\n" {
		t.Error(out)
	}
	c.OK("schedule", "b", "--id", "waits", "--in", "1ms", "x")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.OK("peek", "b")
		return strings.Contains(out, "overdue"), out
	})
	var places []admin.Place
	c.JSON(&places, "show", "b", "ready")
	if len(places) != 1 || places[0].State != "ready" {
		t.Errorf("%+v", places)
	}
	var held []queues.HeldQueue
	c.JSON(&held, "resume", "--all")
	// Queue, Held, Workers, Changed, Known.
	if fmt.Sprint(held) != "[{a false false true true} {b false false true true}]" {
		t.Error(held)
	}
	resumed := time.Now()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		c.JSON(&places, "show", "b", "waits")
		return places[0].State == "ready", fmt.Sprint(places, " after ", time.Since(resumed))
	})
	if out := c.OK("resume", "a", "b"); out != "a  was not paused\nb  was not paused\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"queue unknown: no such queue", "--create"}, "pause", "unknown")
	c.Fails(exit.NotFound, []string{"queue unknown: no such queue"}, "resume", "unknown")
	if out := c.OK("pause", "later", "--create"); !strings.HasPrefix(out, "later  paused") {
		t.Error(out)
	}
	if r := c.Run("pause", "a", "--json"); r.Code != exit.OK || !strings.Contains(r.Out, `"known":true`) {
		t.Errorf("%+v", r)
	}
}

// If a queue cannot be paused, only the error is printed, and not an empty result.
func TestAPauseThatFailsPrintsTheErrorAlone(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--in", "1h", "x")
	c.Do("SET", c.Key("q", "policy"), "of another program")
	for _, how := range []string{"pause", "resume"} {
		r := c.Fails(exit.Failure, []string{"WRONGTYPE"}, how, "q")
		redistest.Want(t, how+" on standard output", r.Out, "")
	}
}
