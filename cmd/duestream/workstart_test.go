package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// tool writes an executable script that leaves a file done-ID behind, and returns its path.
func tool(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ntouch \"$1/done-$DUESTREAM_ID\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// A deploy took the binary away for a minute: each message was given to the worker ten times, and ended as a dead letter. The worker
// ends, all that it was given is delivered with the same attempt, and the messages are done once the binary is there.
func TestACommandThatCannotBeStartedCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(path string) error{
		"gone":           os.Remove,
		"not executable": func(path string) error { return os.Chmod(path, 0o600) },
		"not a program":  func(path string) error { return os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, dir := newWork(t)
			path := tool(t, dir)
			start := func() *running { return c.start("work", "q", "--group", "g", "-n", "2", "--", path, dir) }
			w := start()
			c.ok("schedule", "q", "--id", "first", "x")
			c.gone("first") // it works
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			ids := []string{"a", "b", "c", "d"}
			for _, id := range ids {
				c.ok("schedule", "q", "--id", id, "x")
			}
			if code := w.wait(); code != exitFailure || !strings.Contains(w.err.String(), "cannot be started") || !strings.Contains(w.err.String(), "hint:") {
				t.Errorf("exit code %d: %s", code, w.err)
			}
			for _, id := range ids {
				var places []bridge.Place
				c.json(&places, "show", "q", id)
				if len(places) != 1 || places[0].Attempt != 1 || places[0].State == "dead" || places[0].State == "pending" {
					t.Errorf("%s: %+v", id, places)
				}
			}
			if out := c.ok("dead", "list", "q"); out != "no dead letters\n" {
				t.Error(out)
			}
			tool(t, dir)
			if err := os.Chmod(path, 0o700); err != nil {
				t.Fatal(err)
			}
			start()
			for _, id := range ids {
				c.gone(id)
				if _, err := os.Stat(filepath.Join(dir, "done-"+id)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A binary that is replaced is missing for a moment.
func TestACommandThatIsReplacedIsStartedWhenItIsThere(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	path := tool(t, dir)
	w := c.start("work", "q", "--group", "g", "--", path, dir)
	c.ok("schedule", "q", "--id", "first", "x")
	c.gone("first")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.ok("schedule", "q", "--id", "a", "x")
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.ok("pending", "q", "--group", "g")
		return strings.Contains(out, " a "), out
	})
	tool(t, dir)
	c.gone("a")
	w.stop()
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, w.err)
	}
}

// What a message carries can be too large for an environment: no other message may suffer from that.
func TestAMessageThatNoCommandCanBeStartedWithIsADeadLetterAlone(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	w := c.work(dir, `touch "$1/done"`)
	args := []string{"schedule", "q", "--id", "wide", "x"}
	for _, name := range []string{"a", "b", "c", "d"} {
		args = append(args, "--header", name+"="+strings.Repeat("\x01", 8<<10-1)) // six bytes each in JSON
	}
	c.ok(args...)
	if l := c.letter(w); l.ID != "wide" || l.Attempt != 3 || !strings.Contains(l.Error, "argument list too long") {
		t.Errorf("%+v", l)
	}
	c.ok("schedule", "q", "--id", "next", "x")
	c.gone("next")
}
