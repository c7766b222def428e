package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// letters creates dead letters for three messages and two groups, and returns them oldest first.
func (c *cli) letters() []admin.Letter {
	c.t.Helper()
	c.ok("queue", "set", "q", "--create", "retry_min=1ms", "retry_max=1ms", "max_attempts=1")
	c.serve()
	r := c.redis()
	for _, group := range []string{"g1", "g2"} { // both, before acknowledgements of the first free the entries
		create := r.B().XgroupCreate().Key(c.key("q", "stream")).Group(group).Id("0").Mkstream().Build()
		if err := r.Do(c.t.Context(), create).Error(); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		c.ok("schedule", "q", "--id", id, "--header", "k=v", "payload of "+id)
	}
	for group, code := range map[string]string{"g1": "1", "g2": "65"} {
		w := c.start("work", "q", "--group", group, "--", "sh", "-c", "echo oops in "+group+" >&2; exit "+code)
		redistest.Eventually(c.t, patience, func() (bool, string) {
			out := c.run("dead", "list", "q", "--group", group).out // the group is unknown until its worker runs
			return strings.Count(out, "\n") == 4, out + w.err.String()
		})
		w.stop()
		w.wait()
	}
	var all []admin.Letter
	for line := range strings.Lines(c.ok("dead", "list", "q", "--json")) {
		var l admin.Letter
		decode(c.t, line, &l)
		all = append([]admin.Letter{l}, all...)
	}
	return all
}

func TestDeadLettersAreListedShownAndPurged(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "--create", "max_attempts=1")
	if out := c.ok("dead", "list", "q"); out != "no dead letters\n" {
		t.Error(out)
	}
	all := c.letters()
	if len(all) != 6 {
		t.Fatalf("%d letters: %+v", len(all), all)
	}
	count := func(args ...string) int {
		return strings.Count(c.ok(append([]string{"dead", "list", "q", "--json"}, args...)...), "\n")
	}
	for want, args := range map[int][][]string{
		3: {{"--group", "g1"}, {"--reason", "dead_letter"}, {"--error", "in g2"}, {"--limit", "3"}},
		2: {{"--id", "a"}, {"--id", "?", "--limit", "2"}},
		6: {{"--newer-than", "1h"}, {"--id", "*"}},
		0: {{"--older-than", "1h"}},
	} {
		for _, args := range args {
			if got := count(args...); got != want {
				t.Errorf("%q: %d letters, want %d", args, got, want)
			}
		}
	}
	for limit, says := range map[string]string{"4": "there are 2 more: --limit 0 lists all", "6": "", "0": ""} {
		if r := c.run("dead", "list", "q", "--limit", limit); says == "" && r.err != "" || !strings.Contains(r.err, says) {
			t.Errorf("--limit %s: %s", limit, r.err)
		}
	}
	if r := c.run("dead", "list", "q", "--id", "*", "--limit", "1", "--json"); !strings.Contains(r.err,
		"there are more: --limit 0") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("%s%s", r.out, r.err)
	}
	for _, text := range []string{"COUNT  GROUP  REASON", "3      g1     max_attempts", "3      g2     dead_letter",
		"exit status 65", "\n6 letters\n"} {
		if out := c.ok("dead", "list", "q", "--summary"); !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if r := c.run("dead", "list", "q", "--summary", "--limit", "1", "--json"); strings.Count(r.out, "\n") != 1 ||
		!strings.Contains(r.out, `"count":3`) ||
		!strings.Contains(r.err, "1 more line:") {
		t.Errorf("%s%s", r.out, r.err)
	}
	one := all[0]
	out := c.ok("dead", "show", "q", one.Letter)
	for _, text := range []string{one.ID, one.Group, "header k  v\n", "error:\nexit status ",
		"payload (12 bytes):\npayload of " + one.ID + "\n", "dead     "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.fails(exitNotFound, []string{"not found"}, "dead", "show", "q", "1-1")
	if out := c.ok("dead", "purge", "q", "--group", "g1", "--dry-run"); !strings.HasPrefix(out, "would be purged 3\nLETTER ") ||
		strings.Count(out, "\n") != 5 {
		t.Error(out)
	}
	if out := c.ok("dead", "purge", "q", one.Letter); out != "purged 1\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "dead", "purge", "q", one.Letter)
	c.fails(exitPartly, []string{"not there: 1 letter"}, "dead", "purge", "q", one.Letter, all[1].Letter)
	if out := c.ok("dead", "purge", "q", "--reason", "dead_letter", "--yes"); !strings.HasPrefix(out, "purged ") {
		t.Error(out)
	}
	var got struct{ Purged int }
	c.json(&got, "dead", "purge", "q", "--all", "--yes")
	if left := count(); left != 0 {
		t.Errorf("%d letters are left", left)
	}
}

func TestAReasonThatDoesNotExistIsRefused(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	for _, command := range []string{"list", "redrive", "purge"} {
		c.fails(exitInvalid, []string{`reason "expierd": must be one of max_attempts, `}, "dead", command, "q", "--reason",
			"expierd", "--limit", "5")
	}
}

func TestDeadLettersOfPartitionsAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "--create", "3")
	for i := range 3 {
		group := c.redis().B().XgroupCreate().
			Key(c.key(lua.PartitionName("q", i), "stream")).Group("g").Id("0").Mkstream().Build()
		if err := c.redis().Do(t.Context(), group).Error(); err != nil {
			t.Fatal(err)
		}
		c.in(i, "XADD", "dead", fmt.Sprint(1000+i, "-1"), "id", fmt.Sprint("m-", i), "payload", "x", "attempt", "1", "group", "g", "reason", "dead_letter")
	}
	out := c.ok("dead", "list", "q")
	if first, last := strings.Index(out, "2/1002-1"), strings.Index(out, "\n1000-1"); first < 0 || last < first {
		t.Errorf("newest first:\n%s", out)
	}
	var l admin.Letter
	c.json(&l, "dead", "show", "q", "2/1002-1")
	if l.ID != "m-2" || l.Letter != "2/1002-1" {
		t.Errorf("%+v", l)
	}
	if out := c.ok("dead", "redrive", "q", "2/1002-1"); !strings.HasPrefix(out, "redriven 1,") {
		t.Error(out)
	}
	if out := c.ok("dead", "purge", "q", "1/1001-1"); out != "purged 1\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "dead", "show", "q", "1/1001-1")
	if out := c.ok("dead", "purge", "q", "--all", "--yes"); out != "purged 1\n" {
		t.Error(out)
	}
}
