package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/integration/redistest"
)

func TestTopWithoutATerminalPrintsOneFrame(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serve()
	for i := range 30 {
		c.ok("schedule", fmt.Sprintf("queue-%02d", i), "--in", "1h", "x")
	}
	out := c.ok("top", "--interval", "100ms")
	if !strings.HasPrefix(out, "duestream top  ") || strings.Contains(out, "\x1b") || strings.Contains(out, "… and ") ||
		!strings.Contains(out, "\nqueue-29 ") ||
		strings.Contains(out, "q quit") {
		t.Error(out)
	}
	if out := c.ok("top", "--interval", "100ms", "--color", "always", "queue-07"); !strings.Contains(out,
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
	c.json(&got, "top", "--once", "--interval", "100ms", "queue-03")
	if len(got.Bridges) != 1 || !got.Bridges[0].Fresh || len(got.Queues) != 1 || got.Queues[0].Scheduled != 1 ||
		got.Queues[0].PerSecond == nil {
		t.Errorf("%+v", got)
	}
	lines := c.start("top", "--json", "--interval", "100ms")
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Count(lines.out.String(), "\n") >= 3, lines.out.String()
	})
	lines.stop()
	if code := lines.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, lines.err)
	}
	for line := range strings.Lines(lines.out.String()) {
		decode(t, line, &got)
		if len(got.Queues) != 30 {
			t.Error(line)
		}
	}
	away := &cli{t: t, url: unreachable}
	away.fails(exitInvalid, []string{"interval 50ms: must be between 100ms and 1h",
		`sort "size": must be one of name, lag, rate, lateness`, `queue "a b"`},
		"top", "a b", "--interval", "50ms", "--sort", "size")
	away.fails(exitUnavailable, []string{"hint: "}, "top")
}

// With --json, a lost connection is reported, and lines keep coming.
func TestTopLinesGoOnWhenTheConnectionWasLost(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "emails", "--in", "1h", "x")
	proxy := c.s.Proxy(t)
	c.url = proxy.URL()
	lines := c.start("top", "--json", "--interval", "100ms")
	last := func() string {
		all := strings.Split(strings.TrimSpace(lines.out.String()), "\n")
		return all[len(all)-1]
	}
	redistest.Eventually(t, patience, func() (bool, string) { return strings.Contains(last(), `"queue":"emails"`), last() })
	proxy.Refuse(true)
	proxy.CutAll()
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(last(), `"disconnected":{"since_ms":`) && strings.Contains(last(), `"scheduled":1`), last()
	})
	proxy.Refuse(false)
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(last(), `"scheduled":1`) && !strings.Contains(last(), "disconnected"), last()
	})
	lines.stop()
	if code := lines.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, lines.err)
	}
}
