package clitest

import (
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// NewWork returns a queue q with short retry delays and a bridge, and a directory for the files of commands.
func NewWork(t *testing.T) (*CLI, string) {
	c := New(t)
	c.OK("queue", "set", "q", "--create", "retry_min=1ms", "retry_max=1ms", "max_attempts=3")
	c.Serve()
	return c, t.TempDir()
}

// Work starts a worker of queue q and group g that runs a shell script for each message, with dir as $1.
func (c *CLI) Work(dir, script string, flags ...string) *Running {
	args := append([]string{"work", "q", "--group", "g"}, flags...)
	return c.Start(append(args, "--", "sh", "-c", script, "sh", dir)...)
}

// Letter waits for the only dead letter of queue q. w is the worker whose output is shown if there is none.
func (c *CLI) Letter(w *Running) (l admin.Letter) {
	c.T.Helper()
	redistest.Eventually(c.T, Patience, func() (bool, string) {
		out := c.OK("dead", "list", "q", "--json")
		if out == "" {
			if len(w.ended) > 0 {
				c.T.Fatalf("no dead letter, and the worker has ended: %s%s", w.Out, w.Err)
			}
			return false, "no dead letter; worker: " + w.Out.String() + w.Err.String()
		}
		Decode(c.T, out, &l)
		return true, ""
	})
	return l
}

// Gone waits until a message of queue q is done for all groups.
func (c *CLI) Gone(id string) {
	c.T.Helper()
	redistest.Eventually(c.T, Patience, func() (bool, string) {
		r := c.Run("show", "q", id)
		return r.Code == exit.NotFound, r.Out + r.Err
	})
}
