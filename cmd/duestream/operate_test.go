package main

import (
	"encoding/json"
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
	"github.com/duestream/duestream/lua"
)

func TestCancelSaysWhatItCancelled(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, id := range []string{"a", "b", "c"} {
		c.ok("schedule", "q", "--id", id, "--in", "1h", "x")
	}
	if out := c.ok("cancel", "q", "a"); out != "a  cancelled\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"hint: it became ready"}, "cancel", "q", "a")
	r := c.fails(exitPartly, []string{"not scheduled: 1 of 3 messages"}, "cancel", "q", "b", "a", "c", "--json")
	var answers []cancelled
	decode(t, r.out, &answers)
	if fmt.Sprint(answers) != "[{b true []} {a false []} {c true []}]" {
		t.Error(answers)
	}
	if n := c.scheduled("q"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestRescheduleMovesAMessage(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	var got scheduledAt
	c.json(&got, "reschedule", "q", "a", "--at", at.Format(time.RFC3339))
	if got.ID != "a" || !got.Due.Equal(at) || got.DueMS != at.UnixMilli() {
		t.Errorf("%+v", got)
	}
	if out := c.ok("reschedule", "q", "a", "--in", "0s"); !strings.HasPrefix(out, "a  due ") || !strings.Contains(out, "(now)") && !strings.Contains(out, "ago)") {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "reschedule", "q", "gone", "--in", "1h")
}

// retries puts into the schedule what is left of a message that groups failed.
func (c *cli) retries(queue, id string, due time.Time, groups ...string) {
	c.t.Helper()
	client, k := c.s.Client(c.t), lua.NewKeys(c.prefix, queue)
	for _, group := range groups {
		member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: "1-1"}.String()
		for _, words := range [][]string{
			{"HSET", k.Payload, member, "p"}, {"HSET", k.Meta, member, fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2"}`, id, group)},
			{"ZADD", k.Due, fmt.Sprint(due.UnixMilli()), member},
		} {
			if err := client.Do(c.t.Context(), client.B().Arbitrary(words...).Build()).Error(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// "Paid: stop the callbacks", after the first attempt has failed.
func TestCancelTakesRetriesThatWait(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	due := time.Now().Add(time.Hour)
	c.retries("q", "a", due, "g", "h", "i")
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "x")
	c.fails(exitNotFound, nil, "cancel", "q", "a", "--group", "nobody")
	if out := c.ok("cancel", "q", "a", "--group", "g"); !strings.HasPrefix(out, "a  cancelled: retry for g that was due ") || strings.Contains(out, ",") {
		t.Error(out)
	}
	if out := c.ok("cancel", "q", "a"); out != "a  cancelled\n" { // the message itself; its retries are looked for only when it is not there
		t.Error(out)
	}
	var answers []cancelled
	c.json(&answers, "cancel", "q", "a")
	if len(answers) != 1 || !answers[0].Cancelled || len(answers[0].Retries) != 2 || answers[0].Retries[0].Due.UnixMilli() != due.UnixMilli() {
		t.Errorf("%+v", answers)
	}
	c.fails(exitNotFound, nil, "cancel", "q", "a")
	c.retries("q", "b", due, "g")
	c.ok("schedule", "q", "--id", "b", "--in", "1h", "x")
	if out := c.ok("cancel", "q", "b", "--retries"); !strings.HasPrefix(out, "b  cancelled: retry for g") || c.scheduled("q") != 0 {
		t.Errorf("%s%d are left", out, c.scheduled("q"))
	}
	c.fails(exitInvalid, nil, "cancel", "q", "b", "--retries", "--group", "g")
}

// "The partner is back: try now".
func TestRescheduleMovesRetriesThatWait(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.retries("q", "a", time.Now().Add(time.Hour), "g", "h")
	if out := c.ok("reschedule", "q", "a", "--in", "0s", "--group", "g"); !strings.HasPrefix(out, "a  due ") || !strings.HasSuffix(out, "  retry for g\n") {
		t.Error(out)
	}
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	var got struct {
		scheduledAt
		Retries []takenRetry
	}
	c.json(&got, "reschedule", "q", "a", "--at", at.Format(time.RFC3339))
	if got.ID != "a" || !got.Due.Equal(at) || len(got.Retries) != 2 || !got.Retries[0].Due.Equal(at) {
		t.Errorf("%+v", got)
	}
}

func TestShowSaysEveryPlaceOfAMessage(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "--header", "k=v", "--expires-in", "2h", "the payload")
	for _, text := range []string{`scheduled\n`, `due .*\(in (1h|59m\d+s)\)\n`, `expires`, `header k  v\n`, `payload \(11 bytes\):\nthe payload\n`} {
		if out := c.ok("show", "q", "a"); !regexp.MustCompile(text).MatchString(out) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.runIn("\x1b[31m\x00", "schedule", "q", "--id", "odd", "--in", "1h")
	if out := c.ok("show", "q", "odd"); !strings.Contains(out, `"\x1b[31m\x00"`) || strings.Contains(out, "\x1b") {
		t.Errorf("a payload that is not text reaches the terminal:\n%s", out)
	}
	c.ok("schedule", "q", "--id", "held", "x")
	w := c.work(dir, `echo $$ > "$1/pid"; while ! test -e "$1/go"; do sleep 0.01; done`, "--consumer", "me")
	eventuallyNumber(t, filepath.Join(dir, "pid"))
	var places []bridge.Place
	c.json(&places, "show", "q", "held")
	if len(places) != 1 || places[0].State != "pending" || places[0].Group != "g" || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	var pending []admin.PendingEntry
	c.json(&pending, "pending", "q", "--group", "g")
	if len(pending) != 1 || pending[0].ID != "held" || pending[0].Consumer != "me" || pending[0].Attempt != 1 || pending[0].Deliveries != 1 {
		t.Errorf("%+v", pending)
	}
	if out := c.ok("pending", "q", "--group", "g", "--limit", "1"); !strings.Contains(out, "ENTRY") || !strings.Contains(out, "  held  me  ") ||
		strings.Contains(out, "more") {
		t.Error(out)
	}
	if out := c.ok("pending", "q", "--group", "g", "--consumer", "other"); out != "nothing is pending\n" {
		t.Error(out)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.gone("held")
	c.fails(exitNotFound, []string{"hint: it was acknowledged by every group"}, "show", "q", "held")
	c.fails(exitNotFound, []string{"consumer group is gone"}, "pending", "q", "--group", "other")
	w.stop()
}

func TestStatsCountsQueuesAndGroups(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if out := c.ok("stats"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.serve()
	c.ok("schedule", "one", "--in", "3d", "x")
	c.ok("schedule", "two", "x")
	r := c.redis()
	if err := r.Do(t.Context(), r.B().XgroupCreate().Key(c.key("two", "stream")).Group("g").Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	var all []admin.QueueStats
	c.json(&all, "stats")
	if len(all) != 2 || all[0].Queue != "one" || all[0].Scheduled != 1 || len(all[1].Groups) != 1 || all[1].Groups[0].Lag != 1 {
		t.Errorf("%+v", all)
	}
	out := c.ok("stats")
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], "QUEUE / GROUP") || !strings.HasPrefix(lines[1], "one ") || !strings.Contains(lines[1], "in 3d0h") ||
		!strings.HasPrefix(lines[2], "two ") || !strings.HasPrefix(lines[3], "  g ") || !strings.HasPrefix(lines[4], "all 2 queues ") || !strings.Contains(out, `! two: group "g" has no consumers`) {
		t.Error(out)
	}
	watch := c.start("stats", "one", "--watch", "--json")
	redistest.Eventually(t, patience, func() (bool, string) { return strings.Count(watch.out.String(), "\n") >= 2, watch.out.String() })
	watch.stop()
	if code := watch.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, watch.err)
	}
	for line := range strings.Lines(watch.out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestQueueSetChangesThePolicy(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "max_attempts=4", "visibility_timeout=1d", "held=true")
	c.ok("queue", "set", "q", "--group", "g", "max_attempts=5")
	var got struct {
		MaxAttempts       int   `json:"max_attempts"`
		VisibilityTimeout int64 `json:"visibility_timeout_ms"`
		RetryMax          int64 `json:"retry_max_ms"`
		Held              bool
	}
	c.json(&got, "queue", "show", "q", "--group", "g")
	if got.MaxAttempts != 5 || got.VisibilityTimeout != 86_400_000 || got.RetryMax != 3_600_000 || !got.Held {
		t.Errorf("%+v", got)
	}
	c.json(&got, "queue", "set", "q", "--group", "g", "max_attempts=")
	if got.MaxAttempts != 4 {
		t.Errorf("%+v", got)
	}
	if out := c.ok("queue", "show", "q"); !strings.Contains(out, "visibility_timeout  1d\n") {
		t.Error(out)
	}
	c.fails(exitInvalid, []string{"can be set for a whole queue only"}, "queue", "set", "q", "--group", "g", "held=true")
}

// letters makes dead letters of three messages of two groups, and returns them oldest first.
func (c *cli) letters() []admin.Letter {
	c.t.Helper()
	c.ok("queue", "set", "q", "retry_min=1ms", "retry_max=1ms", "max_attempts=1")
	c.serve()
	r := c.redis()
	for _, group := range []string{"g1", "g2"} { // both, before the first one has everything freed
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
			out := c.ok("dead", "list", "q", "--group", group)
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
	c.ok("queue", "set", "q", "max_attempts=1")
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
		0: {{"--older-than", "1h"}, {"--group", "other"}},
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
	if r := c.run("dead", "list", "q", "--id", "*", "--limit", "1", "--json"); !strings.Contains(r.err, "there are more: --limit 0") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("%s%s", r.out, r.err)
	}
	for _, text := range []string{"COUNT  GROUP  REASON", "3      g1     max_attempts", "3      g2     dead_letter", "exit status #", "\n6 letters\n"} {
		if out := c.ok("dead", "list", "q", "--summary"); !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if r := c.run("dead", "list", "q", "--summary", "--limit", "1", "--json"); strings.Count(r.out, "\n") != 1 || !strings.Contains(r.out, `"count":3`) ||
		!strings.Contains(r.err, "1 more line:") {
		t.Errorf("%s%s", r.out, r.err)
	}
	one := all[0]
	out := c.ok("dead", "show", "q", one.Letter)
	for _, text := range []string{one.ID, one.Group, "header k  v\n", "error:\nexit status ", "payload (12 bytes):\npayload of " + one.ID + "\n", "dead     "} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.fails(exitNotFound, []string{"not found"}, "dead", "show", "q", "1-1")
	if out := c.ok("dead", "purge", "q", "--group", "g1", "--dry-run"); !strings.HasPrefix(out, "would be purged 3\nLETTER ") || strings.Count(out, "\n") != 5 {
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

func TestDeadLettersAreRedrivenForTheirGroup(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	all := c.letters()
	if out := c.ok("dead", "redrive", "q", "--all", "--dry-run"); !strings.HasPrefix(out, "would be redriven 6, gone 0, without payload 0\nLETTER ") ||
		strings.Count(out, "\n") != 8 {
		t.Error(out)
	}
	c.ok("queue", "set", "q", "held=true") // so that what is redriven can be looked at
	one := all[0]
	if out := c.ok("dead", "redrive", "q", one.Letter, "--payload", "", "--header", "new=1", "--in", "1h"); out != "redriven 1, gone 0, without payload 0\n" {
		t.Error(out)
	}
	var places []bridge.Place
	c.json(&places, "show", "q", one.ID)
	found := false
	for _, p := range places {
		if p.State == "retrying" {
			found = p.Group == one.Group && string(p.Payload) == "" && p.Headers["new"] == "1" && len(p.Headers) == 1 && time.Until(p.Due) > 50*time.Minute
		}
	}
	if !found {
		t.Errorf("%+v", places)
	}
	c.fails(exitNotFound, []string{"no such dead letter"}, "dead", "redrive", "q", one.Letter)
	r := c.fails(exitPartly, []string{"not redriven: 1 letter"}, "dead", "redrive", "q", one.Letter, all[1].Letter, "--json")
	var got struct {
		Scheduled, Gone int
		NoPayload       int  `json:"no_payload"`
		DryRun          bool `json:"dry_run"`
	}
	decode(t, r.out, &got)
	if got.Scheduled != 1 || got.Gone != 1 || got.NoPayload != 0 || got.DryRun {
		t.Errorf("%+v", got)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.ok("dead", "redrive", "q", all[2].Letter, "--payload-file", file)
	c.json(&places, "show", "q", all[2].ID)
	if string(places[0].Payload) != "from a file" && string(places[len(places)-1].Payload) != "from a file" {
		t.Errorf("%+v", places)
	}
	if out := c.ok("dead", "redrive", "q", "--id", "*", "--rate", "1000/s", "--spread", "1h"); out != "redriven 3, gone 0, without payload 0\n" {
		t.Error(out)
	}
	if out := c.ok("dead", "list", "q"); out != "no dead letters\n" {
		t.Error(out)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	c := &cli{t: t, url: unreachable}
	if out := c.ok("version"); !strings.HasPrefix(out, "duestream devel (go1.") {
		t.Error(out)
	}
	var v struct{ Version, Go string }
	c.json(&v, "version")
	if v.Version != "devel" || v.Go == "" {
		t.Errorf("%+v", v)
	}
	if out := c.ok("--version"); out != "duestream devel\n" {
		t.Error(out)
	}
	if out := c.ok(); !strings.Contains(out, "Available Commands:") {
		t.Error(out)
	}
}

func TestQueueDeleteRemovesAQueue(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	c.fails(exitFailure, []string{"emials holds 1 scheduled", "--force"}, "queue", "delete", "emials")
	c.fails(exitInvalid, []string{"--yes"}, "queue", "delete", "emials", "--force")
	if n := c.scheduled("emials"); n != 1 {
		t.Fatalf("%d are scheduled", n)
	}
	c.ok("cancel", "emials", "a")
	if out := c.ok("queue", "delete", "emials"); out != "emials  deleted\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"no such queue"}, "queue", "delete", "emials")
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	if out := c.ok("queue", "delete", "emials", "--force", "--yes", "--json"); !strings.Contains(out, `"groups":[],"readers":[]`) { // a list in JSON is never null
		t.Error(out)
	}
	c.ok("schedule", "emials", "--id", "a", "--in", "1h", "x")
	if out := c.ok("queue", "delete", "emials", "--force", "--yes"); out != "emials  deleted, with 1 scheduled\n" {
		t.Error(out)
	}
	if out := c.ok("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "cancel", "emails", "a")
	c.fails(exitNotFound, nil, "reschedule", "emails", "a", "--in", "1h")
	if out := c.ok("queue", "show"); !strings.HasPrefix(out, "no queues\n") {
		t.Errorf("looking for a message made a queue: %s", out)
	}
}

// A refused value of a flag was printed whole, however large it was.
func TestRefusedFlagsAreShownShortened(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, flags := range [][]string{{"--header", "h=" + strings.Repeat("é", 50_000)}, {"--in", strings.Repeat("é", 50_000)}} {
		r := c.run(append([]string{"schedule", "q", "x"}, flags...)...)
		if r.code != exitInvalid || len(r.err) > 1000 || !strings.Contains(r.err, flags[0]) || strings.Contains(r.err, "\ufffd") {
			t.Errorf("exit code %d, %d bytes: %.1000s", r.code, len(r.err), r.err)
		}
	}
}
