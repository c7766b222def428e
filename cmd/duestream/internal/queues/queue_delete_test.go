package queues_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// queue delete removes an empty queue. A queue with messages, recurrences or push targets needs --force, and --yes
// where nobody can be asked. A command that looks for a message of an unknown queue creates no queue.
func TestQueueDeleteRemovesAQueue(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "emials", "--id", "a", "--in", "1h", "x")
	c.Fails(exit.Failure, []string{"emials holds 1 scheduled", "--force"}, "queue", "delete", "emials")
	c.Fails(exit.Invalid, []string{"--yes"}, "queue", "delete", "emials", "--force")
	if n := c.Scheduled("emials"); n != 1 {
		t.Fatalf("%d are scheduled", n)
	}
	c.OK("cancel", "emials", "a")
	if out := c.OK("queue", "delete", "emials"); out != "emials  deleted\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"no such queue"}, "queue", "delete", "emials")
	c.OK("schedule", "emials", "--id", "a", "--in", "1h", "x")
	// A list in JSON is never null.
	if out := c.OK("queue", "delete", "emials", "--force", "--yes", "--json"); !strings.Contains(out,
		`"groups":[],"readers":[]`) {
		t.Error(out)
	}
	c.OK("schedule", "emials", "--id", "a", "--in", "1h", "x")
	if out := c.OK("queue", "delete", "emials", "--force", "--yes"); out != "emials  deleted, with 1 scheduled\n" {
		t.Error(out)
	}
	if out := c.OK("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.OK("recur", "add", "reports", "nightly", "--cron", "0 9 * * *", "--paused")
	c.OK("push", "add", "reports", "--group", "mailer", "--url", "https://example.com/hook")
	c.Fails(exit.Failure, []string{"reports holds 1 recurrence (nightly), 1 push target (mailer)", "--force"},
		"queue", "delete", "reports")
	out := c.OK("queue", "delete", "reports", "--force", "--yes")
	if out != "reports  deleted, with 1 recurrence (nightly), 1 push target (mailer)\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, nil, "cancel", "emails", "a")
	c.Fails(exit.NotFound, nil, "reschedule", "emails", "a", "--in", "1h")
	if out := c.OK("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Errorf("looking for a message made a queue: %s", out)
	}
}
