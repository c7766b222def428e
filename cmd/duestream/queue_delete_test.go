package main

import (
	"strings"
	"testing"
)

func TestQueueDeleteRemovesAQueue(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	c.fails(exitFailure, []string{"emials holds 1 scheduled", "--force"}, "queue", "delete", "emials")
	c.fails(exitInvalid, []string{"--yes"}, "queue", "delete", "emials", "--force")
	if n := c.scheduled("emials"); n != 1 {
		t.Fatalf("%d are scheduled", n)
	}
	c.ok("cancel", "emials", "a")
	if out := c.ok("queue", "delete", "emials"); out != "emials  deleted\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"no such queue"}, "queue", "delete", "emials")
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	// A list in JSON is never null.
	if out := c.ok("queue", "delete", "emials", "--force", "--yes", "--json"); !strings.Contains(out,
		`"groups":[],"readers":[]`) {
		t.Error(out)
	}
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	if out := c.ok("queue", "delete", "emials", "--force", "--yes"); out != "emials  deleted, with 1 scheduled\n" {
		t.Error(out)
	}
	if out := c.ok("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.ok("recur", "add", "reports", "nightly", "--cron", "0 9 * * *", "--paused")
	c.ok("push", "add", "reports", "--group", "mailer", "--url", "https://example.com/hook")
	c.fails(exitFailure, []string{"reports holds 1 recurrence (nightly), 1 push target (mailer)", "--force"},
		"queue", "delete", "reports")
	out := c.ok("queue", "delete", "reports", "--force", "--yes")
	if out != "reports  deleted, with 1 recurrence (nightly), 1 push target (mailer)\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "cancel", "emails", "a")
	c.fails(exitNotFound, nil, "reschedule", "emails", "a", "--in", "1h")
	if out := c.ok("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Errorf("looking for a message made a queue: %s", out)
	}
}
