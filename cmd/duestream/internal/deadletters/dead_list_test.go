package deadletters_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/lua"
)

// The six letters of Letters are counted by each filter, summarized, shown, and purged one by one, by filter, and all.
func TestDeadLettersAreListedShownAndPurged(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "max_attempts=1")
	if out := c.OK("dead", "list", "q"); out != "no dead letters\n" {
		t.Error(out)
	}
	all := c.Letters()
	if len(all) != 6 {
		t.Fatalf("%d letters: %+v", len(all), all)
	}
	count := func(args ...string) int {
		return strings.Count(c.OK(append([]string{"dead", "list", "q", "--json"}, args...)...), "\n")
	}
	for want, args := range map[int][][]string{ // number of letters that each of the filters selects
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
		if r := c.Run("dead", "list", "q", "--limit", limit); says == "" && r.Err != "" || !strings.Contains(r.Err, says) {
			t.Errorf("--limit %s: %s", limit, r.Err)
		}
	}
	if r := c.Run("dead", "list", "q", "--id", "*", "--limit", "1", "--json"); !strings.Contains(r.Err,
		"there are more: --limit 0") || strings.Count(r.Out, "\n") != 1 {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	for _, text := range []string{"COUNT  GROUP  REASON", "3      g1     max_attempts", "3      g2     dead_letter",
		"exit status 65", "\n6 letters\n"} {
		if out := c.OK("dead", "list", "q", "--summary"); !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if r := c.Run("dead", "list", "q", "--summary", "--limit", "1", "--json"); strings.Count(r.Out, "\n") != 1 ||
		!strings.Contains(r.Out, `"count":3`) ||
		!strings.Contains(r.Err, "1 more line:") {
		t.Errorf("%s%s", r.Out, r.Err)
	}
	one := all[0]
	out := c.OK("dead", "show", "q", one.Letter)
	for _, text := range []string{one.ID, one.Group, "header k  v\n", "error:\nexit status ",
		"payload (12 bytes):\npayload of " + one.ID + "\n", "dead     "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.Fails(exit.NotFound, []string{"not found"}, "dead", "show", "q", "1-1")
	if out := c.OK("dead", "purge", "q", "--group", "g1", "--dry-run"); !strings.HasPrefix(out,
		"would be purged 3\nLETTER ") ||
		strings.Count(out, "\n") != 5 {
		t.Error(out)
	}
	if out := c.OK("dead", "purge", "q", one.Letter); out != "purged 1\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, nil, "dead", "purge", "q", one.Letter)
	c.Fails(exit.Partly, []string{"not found: 1 letter"}, "dead", "purge", "q", one.Letter, all[1].Letter)
	if out := c.OK("dead", "purge", "q", "--reason", "dead_letter", "--yes"); !strings.HasPrefix(out, "purged ") {
		t.Error(out)
	}
	var got struct{ Purged int }
	c.JSON(&got, "dead", "purge", "q", "--all", "--yes")
	if left := count(); left != 0 {
		t.Errorf("%d letters are left", left)
	}
}

// A misspelt reason would select no letter without a word, so it is refused with the list of reasons.
func TestAReasonThatDoesNotExistIsRefused(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, command := range []string{"list", "redrive", "purge"} {
		c.Fails(exit.Invalid, []string{`reason "expierd": must be one of max_attempts, `}, "dead", command, "q", "--reason",
			"expierd", "--limit", "5")
	}
}

// The name of a letter of partition n begins with n/, except in partition 0. dead show, redrive and purge take such a
// name.
func TestDeadLettersOfPartitionsAreNamed(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "partitions", "q", "--create", "3")
	for i := range 3 {
		group := c.Redis().B().XgroupCreate().
			Key(c.Key(lua.PartitionName("q", i), "stream")).Group("g").Id("0").Mkstream().Build()
		if err := c.Redis().Do(t.Context(), group).Error(); err != nil {
			t.Fatal(err)
		}
		c.InPartition(i, "XADD", "dead", fmt.Sprint(1000+i, "-1"), "id", fmt.Sprint("m-", i), "payload", "x", "attempt",
			"1", "group", "g", "reason", "dead_letter")
	}
	out := c.OK("dead", "list", "q")
	if first, last := strings.Index(out, "2/1002-1"), strings.Index(out, "\n1000-1"); first < 0 || last < first {
		t.Errorf("the newest letter is not first:\n%s", out)
	}
	var l admin.Letter
	c.JSON(&l, "dead", "show", "q", "2/1002-1")
	if l.ID != "m-2" || l.Letter != "2/1002-1" {
		t.Errorf("%+v", l)
	}
	if out := c.OK("dead", "redrive", "q", "2/1002-1"); !strings.HasPrefix(out, "redriven 1,") {
		t.Error(out)
	}
	if out := c.OK("dead", "purge", "q", "1/1001-1"); out != "purged 1\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, nil, "dead", "show", "q", "1/1001-1")
	if out := c.OK("dead", "purge", "q", "--all", "--yes"); out != "purged 1\n" {
		t.Error(out)
	}
}
