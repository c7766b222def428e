package recurrences_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
	"github.com/duestream/duestream/cmd/duestream/internal/recurrences"
)

// A recurrence goes through its life: added, unchanged, shown, changed, paused, run out of turn, resumed, removed. Its
// planned messages are taken back when it changes, pauses or ends.
func TestRecurAddsShowsHoldsRunsAndRemoves(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	daily := []string{"recur", "add", "q", "nightly", "--cron", "0 9 * * *", "--zone", "Europe/Paris", "--header", "a=b", "hello"}
	if out := c.OK(daily...); !strings.HasPrefix(out, "nightly  added; next ") || !strings.Contains(out, " 09:00:00 +0") {
		t.Error(out)
	}
	if out := c.OK(daily...); !strings.HasPrefix(out, "nightly  unchanged") {
		t.Error(out)
	}
	if n := c.Scheduled("q"); n != 1 {
		t.Errorf("%d are scheduled", n)
	}
	var row recurrences.RecurrenceAnswer
	clitest.Decode(t, c.OK("recur", "list", "--json"), &row)
	if len(row.Next) != 3 || row.Next[0].Hour() != 9 || row.Spec.Zone != "Europe/Paris" || string(row.Spec.Payload) != "hello" {
		t.Errorf("%+v", row)
	}
	out := c.OK("recur", "list", "q")
	if strings.Count(out, " 09:00:00 +0") != 3 || !strings.Contains(out, "0 9 * * * Europe/Paris") {
		t.Error(out)
	}
	if out := c.OK("recur", "show", "q", "nightly"); !strings.Contains(out, "hello") ||
		!strings.Contains(out, "header a") {
		t.Error(out)
	}
	out = c.OK("recur", "add", "q", "nightly", "--every", "90s")
	if !strings.Contains(out, "changed, 1 planned message taken back") {
		t.Error(out)
	}
	if out := c.OK("recur", "pause", "q", "nightly"); !strings.HasPrefix(out, "nightly  paused") || c.Scheduled("q") != 0 {
		t.Error(out)
	}
	var ran output.ScheduledAt
	clitest.Decode(t, c.OK("recur", "run", "q", "nightly", "--json"), &ran)
	if !strings.HasPrefix(ran.ID, "nightly@") || time.Since(ran.Due) > time.Minute {
		t.Errorf("%+v", ran)
	}
	if out := c.OK("recur", "list"); !strings.Contains(out, "paused") || !strings.Contains(out, "every 1m30s") {
		t.Error(out)
	}
	c.OK("recur", "resume", "q", "nightly")
	if names, _ := c.Offers("recur", "show", "q", ""); strings.Join(names, ",") != "nightly" {
		t.Error(names)
	}
	if out := c.OK("recur", "rm", "q", "nightly"); !strings.HasPrefix(out, "nightly  removed, 1 planned message") {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"no such recurrence", "hint: `duestream recur list`"}, "recur", "rm", "q", "nightly")
	if out := c.OK("recur", "list", "q"); out != "no recurrences\n" {
		t.Error(out)
	}
}

// Each key is a command line, and its value a part of the error. There is no server, so the error comes before the
// command connects.
func TestWrongRecurrencesAreNamedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for line, want := range map[string]string{
		"recur add q r --every 1ms":                      `every "1ms": must be whole milliseconds, between 1s and 3650d`,
		"recur add q r --every 1h --zone Europe/Berlin":  "zone",
		"recur add q r --cron @never":                    `cron "@never"`,
		"recur add q r --cron @daily --zone Mars/Phobos": `zone "Mars/Phobos": must be a time zone`,
		"recur add q r --cron @daily --missed later":     `missed "later": must be skip, once or all`,
		"recur add q r":                                             "one of --cron and --every is required",
		"recur add q r --cron @daily --every 5s":                    "--cron and --every exclude each other",
		"recur apply -f /nowhere/recurrences.yaml":                  "no such file",
		"recur add q r --cron @daily --count -1 --overlap sideways": `overlap "sideways": must be allow or skip`,
	} {
		c.Fails(exit.Invalid, []string{want}, strings.Fields(line)...)
	}
}

// apply makes the recurrences of an owner those of the file: it adds, changes and removes. Recurrences of other owners,
// or without an owner, stay, and a file that names one of them is refused. A pause by a person stays.
func TestApplyHasExactlyTheRecurrencesOfAFile(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := filepath.Join(t.TempDir(), "recurrences.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// did applies the file, and returns what became of each recurrence.
	did := func(args ...string) string {
		var all []string
		for line := range strings.Lines(c.OK(append([]string{"recur", "apply", "-f", file, "--json"}, args...)...)) {
			var one struct{ Queue, Name, Did string }
			clitest.Decode(t, line, &one)
			all = append(all, one.Queue+"/"+one.Name+" "+one.Did)
		}
		return strings.Join(all, ", ")
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	c.OK("recur", "add", "a", "own", "--every", "1h")
	c.OK("recur", "add", "a", "theirs", "--every", "1h", "--owner", "others")
	write(`owner: us
recurrences:
  - {queue: a, name: one, every: 90s, payload: '{"x":1}', headers: {k: v}}
  - queue: b
    name: two
    cron: 0 9 * * 1-5
    zone: Europe/Paris
    missed: skip
`)
	want("dry run", did("--dry-run"), "a/one added, b/two added")
	want("nothing was done", c.OK("recur", "list", "--owner", "us"), "no recurrences\n")
	want("first", did(), "a/one added, b/two added")
	want("again", did(), "a/one unchanged, b/two unchanged")
	c.OK("recur", "pause", "b", "two")
	write("owner: us\nrecurrences:\n  - {queue: b, name: two, cron: '@daily'}\n")
	want("changed", did(), "a/one removed, b/two changed")
	if out := c.OK("recur", "list", "b"); !strings.Contains(out, "paused") {
		t.Error("a person's pause is gone:", out)
	}
	want("without recurrences", func() string { write("owner: us\n"); return did() }(), "b/two removed")
	if out := c.OK("recur", "list"); !strings.Contains(out, "own") || !strings.Contains(out, "theirs") {
		t.Error(out)
	}
	for text, want := range map[string]string{
		"owner: us\nrecurrences:\n  - {queue: a, name: theirs, every: 1h}\n":                                           `"others"`,
		"owner: us\nrecurrences:\n  - {queue: a, name: own, every: 1h}\n":                                              "must be the one that recurrence own of a has",
		"owner: us\nrecurrences:\n  - {queue: a, name: x, every: 1h, evry: 1}\n":                                       "evry",
		"owner: us\nrecurrences:\n  - {queue: a, name: x, every: 1h}\n  - {queue: a, name: x, every: 2h}\n":            "must be given once",
		"owner: us\nrecurrences:\n  - {queue: a, name: x, every: soon}\n":                                              "must be a duration",
		"owner: us\nrecurrences:\n  - {queue: a, name: x, cron: '0 9 * *'}\n  - {queue: '', name: y, cron: '* * *'}\n": "must have 5 fields",
		"recurrences: []\n": "owner: must be given",
	} {
		write(text)
		c.Fails(exit.Invalid, []string{want}, "recur", "apply", "-f", file)
	}
}
