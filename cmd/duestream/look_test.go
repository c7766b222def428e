package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// matches wants each line of a text to match the pattern of the same number.
func matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	if !regexp.MustCompile(`^` + strings.Join(patterns, "\n") + `\n$`).MatchString(text) {
		t.Errorf("not as expected:\n%s", text)
	}
}

func TestFindShowsEveryPlaceAndTheHistory(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("queue", "set", "q", "retry_min=1h", "retry_max=1h")
	c.ok("schedule", "other", "--id", "order-42", "--in", "2h", "--header", "k=v", "in the other queue")
	c.ok("schedule", "q", "--id", "order-42", "in this one")
	w := c.work(dir, `touch "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done; echo broken >&2; exit 75`, "--consumer", "me")
	exists := func() (bool, string) {
		_, err := os.Stat(filepath.Join(dir, "began"))
		return err == nil, fmt.Sprint(err)
	}
	redistest.Eventually(t, patience, exists)
	const at, ago = `  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `, `(now|[\d.]+m?s ago) +`
	matches(t, c.ok("find", "order-42", "--queue", "q"),
		`why       held by consumer me of group g since .+`, `queue     q`, `state     pending`, `group     g`, `consumer  me`, `(idle      .+\n)?due       .+`, `attempt   1`, `entry     \d+-\d+`,
		``, `payload \(11 bytes\):`, `in this one`, ``, `history:`,
		at+ago+`due in q, attempt 1`, at+ago+`ready in q as entry \d+-\d+, attempt 1`, at+ago+`delivered to me, or extended by it, attempt 1 of g`)
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
	for _, text := range []string{"queue     other\nstate     scheduled\n", "header k  v\n", "queue    q\nstate    retrying\ngroup    g\n", "error    exit status 75: broken\n",
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

func TestPeekShowsWhatIsDueNext(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "3")
	if out := c.ok("peek", "q"); out != "nothing is scheduled\n" {
		t.Error(out)
	}
	c.ok("pause", "q")
	c.ok("schedule", "q", "--id", "late", "--in", "1ms", "--max-attempts", "3", "four")
	for i := range 4 {
		c.ok("schedule", "q", "--id", fmt.Sprint("m-", i), "--in", fmt.Sprint(i+1, "h"), "--header", "a=b", "--header", "c=d", "x")
	}
	const row = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `
	redistest.Eventually(t, patience, func() (bool, string) { out := c.ok("peek", "q"); return strings.Contains(out, "overdue"), out })
	matches(t, c.ok("peek", "q", "-n", "2"), `DUE +ID +ATTEMPT +FOR +BYTES +HEADERS`,
		row+`overdue \S+  late  1 of 3   -    4      -`, row+`in \S+ +m-0   1        -    1      a=b, c=d`,
		`\(and 3 more: see -n\)`, "! the queue is paused: nothing of this becomes ready until `duestream resume`")
	if out := c.ok("peek", "q", "--payload"); !strings.Contains(out, "PAYLOAD\n") || !strings.Contains(out, "  -         four\n") || strings.Contains(out, "more") {
		t.Error(out)
	}
	r := c.run("peek", "q", "-n", "3", "--json", "--payload")
	var all []admin.Due
	for line := range strings.Lines(r.out) {
		var d admin.Due
		decode(t, line, &d)
		all = append(all, d)
	}
	if len(all) != 3 || !all[0].Overdue || string(all[0].Payload) != "four" || all[1].ID != "m-0" || r.err != `{"note":"(and 2 more: see -n)"}`+"\n" {
		t.Errorf("%+v\n%s", all, r.err)
	}
}

func TestConsumersAndPendingSayWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	if out := c.ok("consumers", "q"); out != "no consumers\n" {
		t.Error(out)
	}
	c.ok("queue", "partitions", "q", "2")
	w := c.work(dir, `echo x >> "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done`, "--consumer", "me", "--concurrency", "3")
	for i := range 5 {
		c.ok("schedule", "q", "--id", fmt.Sprint("m-", i), "x")
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		text, err := os.ReadFile(filepath.Join(dir, "began"))
		return strings.Count(string(text), "x") == 3, fmt.Sprint(string(text), err)
	})
	matches(t, c.ok("consumers", "q"), `GROUP  CONSUMER  PENDING  OLDEST +IDLE +INACTIVE  SEEN`, `g      me        3 +\S+ +\S+ +(-|\S+) +alive`)
	var list []admin.Member
	redistest.Eventually(t, patience, func() (bool, string) { // the worker joins the second partition when it has read of it
		list = nil
		c.json(&list, "consumers", "q", "--group", "g")
		return len(list) == 1 && len(list[0].Partitions) == 2, fmt.Sprintf("%+v", list)
	})
	if len(list) != 1 || list[0].Consumer != "me" || list[0].Pending != 3 || !list[0].Alive || len(list[0].Partitions) != 2 {
		t.Errorf("%+v", list)
	}
	c.fails(exitNotFound, []string{"consumer group is gone"}, "consumers", "q", "-g", "other")
	if out := c.ok("pending", "q", "g", "--limit", "2"); !strings.HasPrefix(out, "ENTRY") || strings.Count(out, "  me  ") != 2 || !strings.HasSuffix(out, "\n(and 1 more: see --limit)\n") {
		t.Error(out)
	}
	if out := c.ok("pending", "q", "g", "--limit", "2", "--consumer", "me", "--min-idle", "1ms"); !strings.Contains(out, "(there may be more: see --limit)\n") {
		t.Error(out)
	}
	r := c.run("pending", "q", "--group", "g", "--limit", "2", "--json")
	var entries []admin.PendingEntry
	decode(t, r.out, &entries)
	if len(entries) != 2 || r.err != `{"note":"(and 1 more: see --limit)"}`+"\n" {
		t.Errorf("%+v, %s", entries, r.err)
	}
	for _, e := range entries {
		if e.Consumer != "me" || e.Deliveries != 1 || e.Attempt != 1 || !strings.HasPrefix(e.ID, "m-") {
			t.Errorf("%+v", e)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.gone("m-4")
	w.stop()
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.serve()
	c.ok("queue", "partitions", "a", "2")
	c.ok("schedule", "b", "--id", "ready", "x")
	if out := c.ok("pause", "a"); out != "a  paused: what is scheduled waits; what is ready is still delivered\n" {
		t.Error(out)
	}
	if out := c.ok("pause", "--all"); out != "a  was paused already\nb  paused: what is scheduled waits; what is ready is still delivered\n" {
		t.Error(out)
	}
	c.ok("schedule", "b", "--id", "waits", "--in", "1ms", "x")
	redistest.Eventually(t, patience, func() (bool, string) { out := c.ok("peek", "b"); return strings.Contains(out, "overdue"), out })
	var places []bridge.Place
	c.json(&places, "show", "b", "ready")
	if len(places) != 1 || places[0].State != "ready" {
		t.Errorf("%+v", places)
	}
	var held []heldQueue
	c.json(&held, "resume", "--all")
	if fmt.Sprint(held) != "[{a false true true} {b false true true}]" {
		t.Error(held)
	}
	resumed := time.Now()
	redistest.Eventually(t, patience, func() (bool, string) {
		c.json(&places, "show", "b", "waits")
		return places[0].State == "ready", fmt.Sprint(places, " after ", time.Since(resumed))
	})
	if out := c.ok("resume", "a", "b"); out != "a  was not paused\nb  was not paused\n" {
		t.Error(out)
	}
	if r := c.run("pause", "unknown"); r.code != exitOK || !strings.Contains(r.err, "no bridge knows a queue unknown yet: is the name right?") {
		t.Errorf("%+v", r)
	}
	if r := c.run("pause", "unknown", "--json"); r.code != exitOK || r.err != "" || !strings.Contains(r.out, `"known":false`) {
		t.Errorf("%+v", r)
	}
	if r := c.run("pause", "a", "--json"); r.code != exitOK || !strings.Contains(r.out, `"known":true`) {
		t.Errorf("%+v", r)
	}
}

// Settings of a queue whose name was misspelt were taken without a word. They are still taken: a queue may be set before its first message.
func TestSettingsOfAnUnknownQueueAreTakenWithANote(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "there", "--in", "1h", "x")
	for line, says := range map[string][2]string{
		"queue set early max_attempts=3": {"no bridge knows a queue early yet: is the name right?", `"known":false`}, "queue show early": {"no bridge knows a queue early yet", `"known":false`},
		"queue partitions new 2":         {"nobody knew a queue new before: is the name right?", `"new":true`},
		"queue set there max_attempts=3": {"", `"known":true`}, "queue show there": {"", `"known":true`}, "queue partitions there 2": {"", `"partitions":2`},
	} {
		if strings.Contains(line, "show early") { // is there once it was set
			c.ok("queue", "set", "early", "max_attempts=3")
		}
		if r := c.run(strings.Fields(line)...); r.code != exitOK || (r.err == "") != (says[0] == "") || !strings.Contains(r.err, says[0]) {
			t.Errorf("%s: %+v", line, r)
		}
		again := strings.Fields(strings.Replace(line, "new", "newer", 1) + " --json")
		if r := c.run(again...); r.code != exitOK || r.err != "" || !strings.Contains(r.out, says[1]) {
			t.Errorf("%q: %+v", again, r)
		}
	}
}

func TestQueueShowWithoutANameListsAll(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if out := c.ok("queue", "show"); out != "no queues\n" {
		t.Error(out)
	}
	c.ok("queue", "partitions", "a", "2")
	c.ok("schedule", "b", "--in", "1h", "x")
	c.ok("queue", "set", "b", "max_attempts=4", "held=true")
	matches(t, c.ok("queue", "show"), `QUEUE  VISIBILITY  MAX ATTEMPTS  RETRY MIN  RETRY MAX  TRIED FOR  PAUSED  PARTITIONS`,
		`a      30s         40 +1s +1h +24h46m +false   2`, `b      30s         4 +1s +1h +7s +true    1`)
	var all []queuePolicy
	c.json(&all, "queue", "show", "--group", "g")
	if len(all) != 2 || all[1].Queue != "b" || all[1].MaxAttempts != 4 || !all[1].Held || all[0].Partitions != 2 {
		t.Errorf("%+v", all)
	}
}
