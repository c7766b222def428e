package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serve()
	c.ok("queue", "partitions", "a", "--create", "2")
	c.ok("schedule", "b", "--id", "ready", "x")
	if out := c.ok("pause", "a"); out != "a  paused: what is scheduled waits; what is ready is still delivered\n" {
		t.Error(out)
	}
	if out := c.ok("pause", "--all"); out != "a  was paused already\nb  paused: what is scheduled waits; what is ready is "+
		"still delivered\n" {
		t.Error(out)
	}
	c.ok("schedule", "b", "--id", "waits", "--in", "1ms", "x")
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.ok("peek", "b")
		return strings.Contains(out, "overdue"), out
	})
	var places []admin.Place
	c.json(&places, "show", "b", "ready")
	if len(places) != 1 || places[0].State != "ready" {
		t.Errorf("%+v", places)
	}
	var held []heldQueue
	c.json(&held, "resume", "--all")
	if fmt.Sprint(held) != "[{a false false true true} {b false false true true}]" {
		t.Error(held)
	}
	resumed := time.Now()
	redistest.Eventually(t, patience, func() (bool, string) {
		c.json(&places, "show", "b", "waits")
		return places[0].State == "ready", fmt.Sprint(places, " after ", time.Since(resumed))
	})
	if out := c.ok("resume", "a", "b"); out != "a  was not paused\nb  was not paused\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"queue unknown: no such queue", "--create"}, "pause", "unknown")
	c.fails(exitNotFound, []string{"queue unknown: no such queue"}, "resume", "unknown")
	if out := c.ok("pause", "later", "--create"); !strings.HasPrefix(out, "later  paused") {
		t.Error(out)
	}
	if r := c.run("pause", "a", "--json"); r.code != exitOK || !strings.Contains(r.out, `"known":true`) {
		t.Errorf("%+v", r)
	}
}

// If a queue cannot be paused, only the error is printed, and not an empty result.
func TestAPauseThatFailsPrintsTheErrorAlone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--in", "1h", "x")
	c.do("SET", c.key("q", "policy"), "of another program")
	for _, how := range []string{"pause", "resume"} {
		r := c.fails(exitFailure, []string{"WRONGTYPE"}, how, "q")
		redistest.Want(t, how+" on standard output", r.out, "")
	}
}
