package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// matches checks each line of a text against the pattern with the same index.
func matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	if !regexp.MustCompile(`^` + strings.Join(patterns, "\n") + `\n$`).MatchString(text) {
		t.Errorf("not as expected:\n%s", text)
	}
}

func TestFindShowsEveryPlaceAndTheHistory(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("queue", "set", "q", "--create", "retry_min=1h", "retry_max=1h")
	c.ok("schedule", "other", "--id", "order-42", "--in", "2h", "--header", "k=v", "in the other queue")
	c.ok("schedule", "q", "--id", "order-42", "in this one")
	w := c.work(dir, `touch "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done; echo broken >&2; exit 75`,
		"--consumer", "me")
	exists := func() (bool, string) {
		_, err := os.Stat(filepath.Join(dir, "began"))
		return err == nil, fmt.Sprint(err)
	}
	redistest.Eventually(t, patience, exists)
	const at, ago = `  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `, `(now|[\d.]+m?s ago) +`
	matches(t, c.ok("find", "order-42", "--queue", "q"),
		`why       held by consumer me of group g since .+`, `queue     q`, `state     pending`, `group     g`, `consumer  me`,
		`held      since .+\n(idle      .+\n)?due       .+`, `attempt   1`, `entry     \d+-\d+`,
		``, `payload \(11 bytes\):`, `in this one`, ``, `history:`,
		at+ago+`due in q, attempt 1`, at+ago+`ready in q as entry \d+-\d+, attempt 1`,
		at+ago+`delivered to me, attempt 1 of g`)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var f admin.Finding
	redistest.Eventually(t, patience, func() (bool, string) {
		c.json(&f, "find", "order-42")
		for _, p := range f.Places {
			if p.State == "retrying" {
				return true, ""
			}
		}
		return false, fmt.Sprint(f.Places)
	})
	w.stop()
	if len(f.Places) != 2 || f.Queues != 2 || len(f.History) < 3 || f.ID != "order-42" {
		t.Errorf("%+v", f)
	}
	out := c.ok("find", "order-42")
	for _, text := range []string{"queue     other\nstate     scheduled\n", "header k  v\n",
		"queue    q\nstate    retrying\ngroup    g\n", "error    exit status 75: broken\n",
		"of g, back in the schedule since\n", "will be due in other, attempt 1\n", "will be due in q, attempt 2 of g; the attempt before failed: exit status 75: broken\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.fails(exitNotFound, []string{"nowhere: gone is not in any of 2 queues looked at", "hint: it was acknowledged"}, "find", "gone")
	c.fails(exitNotFound, []string{"nowhere: order-43 is not in the one queue looked at"}, "find", "order-43", "-q", "q")
	c.ok("schedule", "q", "--id", "window", "--in", "1h", "--dedup", "1d", "x")
	r := c.redis()
	if err := r.Do(t.Context(), r.B().Zrem().Key(c.key("q", "due")).Member("window").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitNotFound, []string{"q took it before, and it is finished or gone; its ID is remembered until "}, "find", "window")
	nowhere := c.fails(exitNotFound, []string{"nowhere: "}, "find", "window", "--json")
	if decode(t, nowhere.out, &f); len(f.Places) != 0 || f.Queues != 2 || len(f.Windows) != 1 || f.Windows[0].Queue != "q" {
		t.Errorf("%+v", f)
	}
	id := strings.Fields(c.ok("schedule", "q", "--in", "1h", "x"))[0]
	if out := c.ok("find", id); !strings.Contains(out, "scheduled: the time in its ID") {
		t.Error(out)
	}
	c.ok("cancel", "q", id)
	c.fails(exitNotFound, []string{"its ID says that it was made "}, "find", id)
	if out := c.ok("__complete", "find", "x", "--queue", ""); !strings.HasPrefix(out, "other\nq\n") {
		t.Error(out)
	}
}

// The bug: the duplicate error said that show tells where the message is, and show said that there is no such
// message. For a finished message in its dedup window, both now say the same.
func TestAFinishedMessageInItsDedupWindowIsToldAlikeByEverybody(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "a", "--dedup", "1d", "x")
	c.work(dir, "exit 0")
	c.gone("a")
	remembered := regexp.MustCompile(`q took it before.* its ID is remembered until (\S+)`)
	duplicate := remembered.FindStringSubmatch(c.fails(exitDuplicate, []string{"hint: `duestream find <id>`"}, "schedule", "q",
		"--id", "a", "--dedup", "1d", "x").err)
	found := remembered.FindStringSubmatch(c.fails(exitNotFound, []string{"it is finished or gone"}, "find", "a").err)
	if duplicate == nil || found == nil || strings.TrimRight(duplicate[1], ":") != strings.TrimRight(found[1], ":") {
		t.Errorf("%q, %q", duplicate, found)
	}
	c.ok("schedule", "q", "--id", "b", "--in", "1h", "x")
	if r := c.fails(exitDuplicate, nil, "schedule", "q", "--id", "b", "x"); strings.Contains(r.err, "remembered") {
		t.Error(r.err)
	}
}

// find shows where a message is. The first line of each place says why the message is there.
func TestFindSaysFirstWhyAMessageIsNotDelivered(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.ok("pause", "q")
	if out := c.ok("find",
		"a"); !regexp.MustCompile(`^why +waits for its time, \S+; the queue is paused, and no bridge is alive\n`).MatchString(out) {
		t.Error(out)
	}
	var f admin.Finding
	if c.json(&f, "find", "a"); len(f.Places) != 1 || !strings.Contains(f.Places[0].Why, "the queue is paused") {
		t.Errorf("%+v", f)
	}
}
