package workers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// tool writes an executable script that creates a file done-ID in the directory of its argument, and returns its path.
func tool(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ntouch \"$1/done-$DUESTREAM_ID\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Regression: a deployment removed the binary for a minute, and each message became a dead letter after ten deliveries.
// Now the worker ends, its messages are delivered again with the same attempt, and are done once the binary is back.
func TestACommandThatCannotBeStartedCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(path string) error{
		"gone":           os.Remove,
		"not executable": func(path string) error { return os.Chmod(path, 0o600) },
		"not a program":  func(path string) error { return os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, dir := clitest.NewWork(t)
			path := tool(t, dir)
			start := func() *clitest.Running { return c.Start("work", "q", "--group", "g", "-n", "2", "--", path, dir) }
			w := start()
			c.OK("schedule", "q", "--id", "first", "x")
			c.Gone("first") // the tool works
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			ids := []string{"a", "b", "c", "d"}
			for _, id := range ids {
				c.OK("schedule", "q", "--id", id, "x")
			}
			if code := w.Wait(); code != exit.Failure || !strings.Contains(w.Err.String(), "cannot be started") ||
				!strings.Contains(w.Err.String(), "hint:") {
				t.Errorf("exit code %d: %s", code, w.Err)
			}
			for _, id := range ids {
				var places []admin.Place
				c.JSON(&places, "show", "q", id)
				if len(places) != 1 || places[0].Attempt != 1 || places[0].State == "dead" || places[0].State == "pending" {
					t.Errorf("%s: %+v", id, places)
				}
			}
			if out := c.OK("dead", "list", "q"); out != "no dead letters\n" {
				t.Error(out)
			}
			tool(t, dir)
			if err := os.Chmod(path, 0o700); err != nil {
				t.Fatal(err)
			}
			start()
			for _, id := range ids {
				c.Gone(id)
				if _, err := os.Stat(filepath.Join(dir, "done-"+id)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A binary that is being replaced is missing for a moment. The worker tries again to start it, and does not end.
func TestACommandThatIsReplacedIsStartedWhenItIsThere(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	path := tool(t, dir)
	w := c.Start("work", "q", "--group", "g", "--", path, dir)
	c.OK("schedule", "q", "--id", "first", "x")
	c.Gone("first")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.OK("schedule", "q", "--id", "a", "x")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.OK("pending", "q", "--group", "g")
		return strings.Contains(out, " a "), out
	})
	tool(t, dir)
	c.Gone("a")
	w.Stop()
	if code := w.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, w.Err)
	}
}

// A message whose headers are too large for an environment becomes a dead letter after its attempts. No other message
// may suffer from that.
func TestAMessageThatNoCommandCanBeStartedWithIsADeadLetterAlone(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	w := c.Work(dir, `touch "$1/done"`)
	args := []string{"schedule", "q", "--id", "wide", "x"}
	for _, name := range []string{"a", "b", "c", "d"} {
		// DUESTREAM_HEADERS has six bytes for each \x01.
		args = append(args, "--header", name+"="+strings.Repeat("\x01", 8<<10-1))
	}
	c.OK(args...)
	if l := c.Letter(w); l.ID != "wide" || l.Attempt != 3 || !strings.Contains(l.Error, "argument list too long") {
		t.Errorf("%+v", l)
	}
	c.OK("schedule", "q", "--id", "next", "x")
	c.Gone("next")
}

// Regression: work ignored DUESTREAM_LOG_LEVEL, both a wrong value and debug, which logs the outcome of each delivery.
// Here a late acknowledgement is logged at level info, and not without the variable.
func TestWorkTakesTheLevelOfItsLogFromTheEnvironment(t *testing.T) {
	c, dir := clitest.NewWork(t)
	t.Setenv("DUESTREAM_LOG_LEVEL", "loud")
	c.Fails(exit.Invalid, []string{`DUESTREAM_LOG_LEVEL "loud"`}, "work", "q", "--group", "g", "--", "true")
	for level, logged := range map[string]bool{"info": true, "": false} {
		if level == "" {
			os.Unsetenv("DUESTREAM_LOG_LEVEL")
		} else {
			t.Setenv("DUESTREAM_LOG_LEVEL", level)
		}
		w := c.Work(dir, `touch "$1/got-$DUESTREAM_ID"; while ! test -e "$1/end-$DUESTREAM_ID"; do sleep 0.01; done`)
		id := "id" + level
		c.OK("schedule", "q", "--id", id, "x")
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			_, err := os.Stat(filepath.Join(dir, "got-"+id))
			return err == nil, "not delivered"
		})
		// Acknowledge the entry in place of the worker, whose own acknowledgement is then too late, and is logged at
		// level info.
		group, stream := "g", lua.NewKeys(c.Prefix, "q").Stream
		redis := redistest.Shared(t).Client(t)
		for _, p := range pendingOf(t, redis, stream, group) {
			if err := redis.Do(t.Context(), redis.B().Xack().Key(stream).Group(group).Id(p).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "end-"+id), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.OK("schedule", "q", "--id", id+"-2", "x") // begins once the first is settled
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			_, err := os.Stat(filepath.Join(dir, "got-"+id+"-2"))
			return err == nil, "not delivered"
		})
		if err := os.WriteFile(filepath.Join(dir, "end-"+id+"-2"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.Stop()
		w.Wait()
		if got := strings.Contains(w.Err.String(), "acknowledged too late") ||
			strings.Contains(w.Err.String(), "delivery was lost"); got != logged {
			t.Errorf("level %q: logged %v: %s", level, got, w.Err)
		}
	}
}

// pendingOf returns the entries that are pending in a group.
func pendingOf(t *testing.T, c rueidis.Client, stream, group string) (ids []string) {
	t.Helper()
	rows, err := c.Do(t.Context(),
		c.B().Xpending().Key(stream).Group(group).Start("-").End("+").Count(10).Build()).ToArray()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		one, err := row.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		id, err := one[0].ToString()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
