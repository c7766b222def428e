package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// The duplicate error said "show says where it is", and show said that there is no such message. Both say the same of one that is finished.
func TestAFinishedMessageInItsDedupWindowIsToldAlikeByEverybody(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "a", "--dedup", "1d", "x")
	c.work(dir, "exit 0")
	c.gone("a")
	remembered := regexp.MustCompile(`q took it before.* its ID is remembered until (\S+)`)
	duplicate := remembered.FindStringSubmatch(c.fails(exitDuplicate, []string{"hint: `duestream find <id>`"}, "schedule", "q", "--id", "a", "--dedup", "1d", "x").err)
	found := remembered.FindStringSubmatch(c.fails(exitNotFound, []string{"it is finished or gone"}, "find", "a").err)
	if duplicate == nil || found == nil || strings.TrimRight(duplicate[1], ":") != strings.TrimRight(found[1], ":") {
		t.Errorf("%q, %q", duplicate, found)
	}
	c.ok("schedule", "q", "--id", "b", "--in", "1h", "x")
	if r := c.fails(exitDuplicate, nil, "schedule", "q", "--id", "b", "x"); strings.Contains(r.err, "remembered") {
		t.Error(r.err)
	}
}

// find says where a message is; the first line of each place says why it is there.
func TestFindSaysFirstWhyAMessageIsNotDelivered(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.ok("pause", "q")
	if out := c.ok("find", "a"); !regexp.MustCompile(`^why +waits for its time, \S+; the queue is paused, and no bridge is alive\n`).MatchString(out) {
		t.Error(out)
	}
	var f admin.Finding
	if c.json(&f, "find", "a"); len(f.Places) != 1 || !strings.Contains(f.Places[0].Why, "the queue is paused") {
		t.Errorf("%+v", f)
	}
}

// Whoever schedules, works or counts while no bridge runs is told: it all succeeds, and nothing comes of it.
func TestCommandsWarnInOneLineWhenNoBridgeLives(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const warning = "no bridge is alive: nothing becomes ready until one runs"
	if r := c.run("schedule", "q", "--in", "1h", "x"); r.code != exitOK || strings.Count(r.err, warning) != 1 || strings.Count(r.err, "\n") != 1 {
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

// A worker on a terminal says what it does; a line per retry says when it comes back.
func TestALineTellsOfARetryWithItsDelay(t *testing.T) {
	t.Parallel()
	s := new(buffer)
	a := &app{err: s}
	a.tellRetried(&bridge.Message{}, 1500_000_000, "exit status 1: \x1b[31mno\n")
	if out := s.String(); !strings.Contains(out, "attempt 0 failed, again in 2s: exit status 1:  [31mno") || strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}
