package command_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// While no bridge is alive, schedule, work and stats succeed, and warn in one line that no message becomes ready. With
// a bridge, they print no warning.
func TestCommandsWarnInOneLineWhenNoBridgeLives(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	const warning = "no bridge is alive: nothing becomes ready until one runs"
	if r := c.Run("schedule", "q", "--in", "1h", "x"); r.Code != exit.OK || strings.Count(r.Err, warning) != 1 ||
		strings.Count(r.Err, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if r := c.Run("stats", "--json"); r.Code != exit.OK || strings.Count(r.Err, warning) != 1 {
		t.Errorf("%+v", r)
	}
	w := c.Start("work", "q", "--group", "g", "--", "true")
	w.Says(warning)
	w.Stop()
	w.Wait()
	c.Serve()
	for _, args := range [][]string{{"schedule", "q", "--in", "1h", "x"}, {"stats", "--json"}} {
		if r := c.Run(args...); r.Code != exit.OK || r.Err != "" {
			t.Errorf("%+v", r)
		}
	}
}
