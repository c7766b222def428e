package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
)

func TestShowSaysEveryPlaceOfAMessage(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "a", "--in", "1h", "--header", "k=v", "--expires-in", "2h", "the payload")
	for _, text := range []string{`scheduled\n`, `due .*\(in (1h|59m\d+s)\)\n`, `expires`, `header k  v\n`,
		`payload \(11 bytes\):\nthe payload\n`} {
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
	var places []admin.Place
	c.json(&places, "show", "q", "held")
	if len(places) != 1 || places[0].State != "pending" || places[0].Group != "g" || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	var pending []admin.PendingEntry
	c.json(&pending, "pending", "q", "--group", "g")
	if len(pending) != 1 || pending[0].ID != "held" || pending[0].Consumer != "me" || pending[0].Attempt != 1 ||
		pending[0].Deliveries != 1 {
		t.Errorf("%+v", pending)
	}
	if out := c.ok("pending", "q", "--group", "g", "--limit", "1"); !strings.Contains(out, "ENTRY") ||
		!strings.Contains(out, "  held  me  ") ||
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
	c.fails(exitNotFound, []string{"no such consumer group"}, "pending", "q", "--group", "other")
	w.stop()
}

func TestShowRawPrintsThePayloadAndLargeOnesAreCutForPeople(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	payload := "\x00\x1b[2J\xff\n" + strings.Repeat("é", 5000)
	if r := c.runIn(payload, "schedule", "q", "--id", "one", "--in", "1h"); r.code != exitOK {
		t.Fatal(r)
	}
	if out := c.ok("show", "q", "one", "--raw"); out != payload {
		t.Errorf("%d bytes, want %d", len(out), len(payload))
	}
	if text := payloadText([]byte(strings.Repeat("é", 5000)), true); len(text) > 5000 ||
		!strings.Contains(text, "… and 5,904 more bytes: --raw") {
		t.Errorf("%d bytes: %s", len(text), text[len(text)-80:])
	}
	if text := payloadText([]byte(strings.Repeat("é", 5000)), false); len(text) != 10_000 {
		t.Errorf("%d bytes", len(text))
	}
}
