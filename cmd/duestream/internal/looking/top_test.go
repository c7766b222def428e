package looking_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/integration/redistest"
)

// Without a terminal, top prints one frame with all queues, without colours and keys, and ends. With --json it prints
// lines until it is stopped.
func TestTopWithoutATerminalPrintsOneFrame(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	for i := range 30 {
		c.OK("schedule", fmt.Sprintf("queue-%02d", i), "--in", "1h", "x")
	}
	out := c.OK("top", "--interval", "100ms")
	if !strings.HasPrefix(out, "duestream top  ") || strings.Contains(out, "\x1b") || strings.Contains(out, "… and ") ||
		!strings.Contains(out, "\nqueue-29 ") ||
		strings.Contains(out, "q quit") {
		t.Error(out)
	}
	if out := c.OK("top", "--interval", "100ms", "--color", "always", "queue-07"); !strings.Contains(out,
		"\x1b[1mduestream top\x1b[0m") || strings.Contains(out, "queue-08") {
		t.Errorf("%q", out)
	}
	var got struct {
		Bridges []heartbeat.Health
		Queues  []struct {
			Queue     string
			Scheduled int
			PerSecond *admin.QueueRates `json:"per_second"`
		}
	}
	c.JSON(&got, "top", "--once", "--interval", "100ms", "queue-03")
	if len(got.Bridges) != 1 || !got.Bridges[0].Fresh || len(got.Queues) != 1 || got.Queues[0].Scheduled != 1 ||
		got.Queues[0].PerSecond == nil {
		t.Errorf("%+v", got)
	}
	lines := c.Start("top", "--json", "--interval", "100ms")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Count(lines.Out.String(), "\n") >= 3, lines.Out.String()
	})
	lines.Stop()
	if code := lines.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, lines.Err)
	}
	for line := range strings.Lines(lines.Out.String()) {
		clitest.Decode(t, line, &got)
		if len(got.Queues) != 30 {
			t.Error(line)
		}
	}
	away := &clitest.CLI{T: t, URL: clitest.Unreachable}
	away.Fails(exit.Invalid, []string{"interval 50ms: must be between 100ms and 1h",
		`sort "size": must be one of name, lag, rate, lateness`, `queue "a b"`},
		"top", "a b", "--interval", "50ms", "--sort", "size")
	away.Fails(exit.Unavailable, []string{"hint: "}, "top")
}

// With --json, a lost connection is reported, and lines keep coming.
func TestTopLinesGoOnWhenTheConnectionWasLost(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "emails", "--in", "1h", "x")
	proxy := c.Server.Proxy(t)
	c.URL = proxy.URL()
	lines := c.Start("top", "--json", "--interval", "100ms")
	last := func() string {
		all := strings.Split(strings.TrimSpace(lines.Out.String()), "\n")
		return all[len(all)-1]
	}
	redistest.Eventually(t, clitest.Patience,
		func() (bool, string) { return strings.Contains(last(), `"queue":"emails"`), last() })
	proxy.Refuse(true)
	proxy.CutAll()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(last(), `"disconnected":{"since_ms":`) && strings.Contains(last(), `"scheduled":1`), last()
	})
	proxy.Refuse(false)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(last(), `"scheduled":1`) && !strings.Contains(last(), "disconnected"), last()
	})
	lines.Stop()
	if code := lines.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, lines.Err)
	}
}
