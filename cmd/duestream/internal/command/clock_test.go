package command_test

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// Regression: expiry used the clock of the scheduling machine. With a server an hour ahead, a message that was to live
// for ten minutes expired at once; with a server behind, it lived for an hour more.
func TestExpiryCountsByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	c := clitest.NewOn(t, server)
	// Steps add up, and a map has no order, so the clock is at +1h and then -1h, or at -2h and then -1h.
	for what, step := range map[string]time.Duration{"ahead": time.Hour, "behind": -2 * time.Hour} {
		clock.Step(step)
		c.RunIn(`{"id":"line"}`, "schedule", what, "--file", "-", "--in", "5m", "--expires-in", "10m")
		c.OK("schedule", what, "--id", "one", "--in", "5m", "--expires-in", "10m", "x")
		at := time.Now().Add(clock.By()).Add(5 * time.Minute) // "in 5m" by the clock of Redis
		c.OK("schedule", what, "--id", "at", "--at", at.Format(time.RFC3339), "--expires-in", "10m", "x")
		c.OK("schedule", what, "--id", "until", "--in", "5m", "--expires-at", at.Add(5*time.Minute).Format(time.RFC3339), "x")
		for _, id := range []string{"line", "one", "at", "until"} {
			var places []struct{ Expires time.Time }
			c.JSON(&places, "show", what, id)
			if len(places) != 1 || places[0].Expires.Sub(at.Add(5*time.Minute)).Abs() > time.Minute {
				t.Errorf("%s: %s expires %v, and not ten minutes after %s", what, id, places, at.Add(-5*time.Minute))
			}
		}
		c.Fails(exit.Invalid, []string{"must be after the due time"}, "schedule", what, "--in", "5m", "--expires-at",
			at.Add(-time.Minute).Format(time.RFC3339), "x")
		c.Fails(exit.Invalid, []string{"must be after the due time"}, "schedule", what, "--at",
			at.Add(10*time.Minute).Format(time.RFC3339), "--expires-in", "10m", "x")
	}
	c.Fails(exit.Invalid, []string{"must be after the due time"}, "schedule", "q", "--in", "5m", "--expires-in", "5m", "x")
}

// Regression: times were compared with the local clock. With a Redis clock hours apart, a message due in half an hour
// was shown as due in five hours, and a new dead letter as hours old.
func TestTimesAreToldByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	c := clitest.NewOn(t, server)
	// told runs a command, whose output must match the pattern says.
	told := func(says string, args ...string) {
		t.Helper()
		if out := c.OK(args...); !regexp.MustCompile(says).MatchString(out) {
			t.Errorf("the clock of Redis is %s ahead: %q does not say %q:\n%s", clock.By(), args, says, out)
		}
	}
	const soon, past, minutes = `\bin (30m|29m\d+s)`, `\b(now|\d+m?s ago)\b`, `\(in (\d+m)?(\d+s)?\)\n`
	for _, step := range []time.Duration{5 * time.Hour, -10 * time.Hour} {
		clock.Step(step)
		id := "m" + clock.By().String()
		told(soon, "schedule", "q", "--in", "30m", "--id", id, "x")
		told(soon, "reschedule", "q", id, "--in", "30m")
		told(soon, "show", "q", id)
		told(soon, "find", id)
		told(soon, "peek", "q")
		told(soon, "stats", "q")
		told(soon, "bulk", "reschedule", "q", id, "--in", "30m")
		told(soon, "bulk", "cancel", "q", id, "--dry-run")
		c.Retries("q", "retried", time.Now().Add(clock.By()).Add(30*time.Minute), "g")
		told(soon, "cancel", "q", "retried")
		c.OK("cancel", "q", id)

		told(minutes, "recur", "add", "q", id, "--every", "30m", "x")
		told(minutes, "recur", "show", "q", id)
		c.OK("recur", "rm", "q", id)

		dead := strconv.FormatInt(time.Now().Add(clock.By()).UnixMilli(), 10)
		reply := c.Do("XADD", c.Key("q", "dead"), "*", "id", "m", "payload", "x", "reason", "max_attempts", "dead_ms", dead)
		letter, err := reply.ToString()
		if err != nil {
			t.Fatal(err)
		}
		told(past, "dead", "list", "q")
		told(past, "dead", "list", "q", "--summary")
		told(past, "dead", "show", "q", letter)
		c.OK("dead", "purge", "q", letter)

		c.OK("token", "add", id, "--verb", "publish", "--queue", "q", "--expires", "30m")
		told(soon, "token", "list")
		c.OK("token", "rm", id)
	}
}
