package main

import (
	"strings"
	"testing"
)

// While no bridge is alive, schedule, work and stats warn: they succeed, but no message becomes ready.
func TestCommandsWarnInOneLineWhenNoBridgeLives(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const warning = "no bridge is alive: nothing becomes ready until one runs"
	if r := c.run("schedule", "q", "--in", "1h", "x"); r.code != exitOK || strings.Count(r.err, warning) != 1 ||
		strings.Count(r.err, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if r := c.run("stats", "--json"); r.code != exitOK || strings.Count(r.err, warning) != 1 {
		t.Errorf("%+v", r)
	}
	w := c.start("work", "q", "--group", "g", "--", "true")
	w.says(warning)
	w.stop()
	w.wait()
	c.serve()
	for _, args := range [][]string{{"schedule", "q", "--in", "1h", "x"}, {"stats", "--json"}} {
		if r := c.run(args...); r.code != exitOK || r.err != "" {
			t.Errorf("%+v", r)
		}
	}
}
