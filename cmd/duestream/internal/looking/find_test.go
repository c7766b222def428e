package looking_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// find shows all places of a message in all queues, why it is there, and its history. For a message that is nowhere, it
// shows when the dedup window ends and when the ID was made.
func TestFindShowsEveryPlaceAndTheHistory(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("queue", "set", "q", "--create", "retry_min=1h", "retry_max=1h")
	c.OK("schedule", "other", "--id", "order-42", "--in", "2h", "--header", "k=v", "in the other queue")
	c.OK("schedule", "q", "--id", "order-42", "in this one")
	w := c.Work(dir, `touch "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done; echo broken >&2; exit 75`,
		"--consumer", "me")
	began := func() (bool, string) {
		_, err := os.Stat(filepath.Join(dir, "began"))
		return err == nil, fmt.Sprint(err)
	}
	redistest.Eventually(t, clitest.Patience, began)
	const at, ago = `  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `, `(now|[\d.]+m?s ago) +`
	clitest.Matches(t, c.OK("find", "order-42", "--queue", "q"),
		`why       held by consumer me of group g since .+`, `queue     q`, `state     pending`, `group     g`, `consumer  me`,
		`held      since .+\n(idle      .+\n)?due       .+`, `attempt   1`, `entry     \d+-\d+`,
		``, `payload \(11 bytes\):`, `in this one`, ``, `history:`,
		at+ago+`due in q, attempt 1`, at+ago+`ready in q as entry \d+-\d+, attempt 1`,
		at+ago+`delivered to me, attempt 1 of g`)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var f admin.Finding
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		c.JSON(&f, "find", "order-42")
		for _, p := range f.Places {
			if p.State == "retrying" {
				return true, ""
			}
		}
		return false, fmt.Sprint(f.Places)
	})
	w.Stop()
	if len(f.Places) != 2 || f.Queues != 2 || len(f.History) < 3 || f.ID != "order-42" {
		t.Errorf("%+v", f)
	}
	out := c.OK("find", "order-42")
	for _, text := range []string{"queue     other\nstate     scheduled\n", "header k  v\n",
		"queue    q\nstate    retrying\ngroup    g\n", "error    exit status 75: broken\n",
		"of g, back in the schedule since\n", "will be due in other, attempt 1\n", "will be due in q, attempt 2 of g; the attempt before failed: exit status 75: broken\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.Fails(exit.NotFound, []string{"nowhere: gone is not scheduled in any of the 2 queues searched, nor one of the ",
		"hint: it was acknowledged"},
		"find", "gone")
	c.Fails(exit.NotFound, []string{"nowhere: order-43 is not scheduled in the one queue searched"},
		"find", "order-43", "-q", "q")
	c.OK("schedule", "q", "--id", "window", "--in", "1h", "--dedup", "1d", "x")
	r := c.Redis() // remove the message, so that only its dedup window is left
	if err := r.Do(t.Context(), r.B().Zrem().Key(c.Key("q", "due")).Member("window").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.Fails(exit.NotFound, []string{"q took it before, and it is finished or gone; its ID is remembered until "},
		"find", "window")
	nowhere := c.Fails(exit.NotFound, []string{"nowhere: "}, "find", "window", "--json")
	if clitest.Decode(t, nowhere.Out, &f); len(f.Places) != 0 || f.Queues != 2 || len(f.Windows) != 1 ||
		f.Windows[0].Queue != "q" {
		t.Errorf("%+v", f)
	}
	id := strings.Fields(c.OK("schedule", "q", "--in", "1h", "x"))[0] // a random ID holds the time at which it was made
	if out := c.OK("find", id); !strings.Contains(out, "scheduled: the time in its ID") {
		t.Error(out)
	}
	c.OK("cancel", "q", id)
	c.Fails(exit.NotFound, []string{"its ID says that it was made "}, "find", id)
	if out := c.OK("__complete", "find", "x", "--queue", ""); !strings.HasPrefix(out, "other\nq\n") {
		t.Error(out)
	}
}

// Regression: the duplicate error said that show tells where the message is, and show said that there is no such
// message. For a finished message in its dedup window, schedule and find now say the same, with the same end of the
// window.
func TestAFinishedMessageInItsDedupWindowIsToldAlikeByEverybody(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "a", "--dedup", "1d", "x")
	c.Work(dir, "exit 0")
	c.Gone("a")
	remembered := regexp.MustCompile(`q took it before.* its ID is remembered until (\S+)`)
	duplicate := remembered.FindStringSubmatch(c.Fails(exit.Duplicate, []string{"hint: `duestream find <id>`"},
		"schedule", "q",
		"--id", "a", "--dedup", "1d", "x").Err)
	found := remembered.FindStringSubmatch(c.Fails(exit.NotFound, []string{"it is finished or gone"}, "find", "a").Err)
	if duplicate == nil || found == nil || strings.TrimRight(duplicate[1], ":") != strings.TrimRight(found[1], ":") {
		t.Errorf("%q, %q", duplicate, found)
	}
	c.OK("schedule", "q", "--id", "b", "--in", "1h", "x")
	if r := c.Fails(exit.Duplicate, nil, "schedule", "q", "--id", "b", "x"); strings.Contains(r.Err, "remembered") {
		t.Error(r.Err)
	}
}

// The first line of each place in the output of find says why the message is there and not delivered.
func TestFindSaysFirstWhyAMessageIsNotDelivered(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.OK("pause", "q")
	if out := c.OK("find",
		"a"); !regexp.MustCompile(`^why +waits for its time, \S+; the queue is paused, and no bridge is alive\n`).MatchString(out) {
		t.Error(out)
	}
	var f admin.Finding
	if c.JSON(&f, "find", "a"); len(f.Places) != 1 || !strings.Contains(f.Places[0].Why, "the queue is paused") {
		t.Errorf("%+v", f)
	}
}
