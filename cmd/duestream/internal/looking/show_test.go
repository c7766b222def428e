package looking_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// show tells where a message is, while it is scheduled and while a worker holds it, and prints a payload that is not
// text without control characters. A finished message is not found.
func TestShowSaysEveryPlaceOfAMessage(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "a", "--in", "1h", "--header", "k=v", "--expires-in", "2h", "the payload")
	for _, text := range []string{`scheduled\n`, `due .*\(in (1h|59m\d+s)\)\n`, `expires`, `header k  v\n`,
		`payload \(11 bytes\):\nthe payload\n`} {
		if out := c.OK("show", "q", "a"); !regexp.MustCompile(text).MatchString(out) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.RunIn("\x1b[31m\x00", "schedule", "q", "--id", "odd", "--in", "1h")
	if out := c.OK("show", "q", "odd"); !strings.Contains(out, `"\x1b[31m\x00"`) || strings.Contains(out, "\x1b") {
		t.Errorf("a payload that is not text reaches the terminal:\n%s", out)
	}
	c.OK("schedule", "q", "--id", "held", "x")
	w := c.Work(dir, `echo $$ > "$1/pid"; while ! test -e "$1/go"; do sleep 0.01; done`, "--consumer", "me")
	clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	var places []admin.Place
	c.JSON(&places, "show", "q", "held")
	if len(places) != 1 || places[0].State != "pending" || places[0].Group != "g" || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	var pending []admin.PendingEntry
	c.JSON(&pending, "pending", "q", "--group", "g")
	if len(pending) != 1 || pending[0].ID != "held" || pending[0].Consumer != "me" || pending[0].Attempt != 1 ||
		pending[0].Deliveries != 1 {
		t.Errorf("%+v", pending)
	}
	if out := c.OK("pending", "q", "--group", "g", "--limit", "1"); !strings.Contains(out, "ENTRY") ||
		!strings.Contains(out, "  held  me  ") ||
		strings.Contains(out, "more") {
		t.Error(out)
	}
	if out := c.OK("pending", "q", "--group", "g", "--consumer", "other"); out != "nothing is pending\n" {
		t.Error(out)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Gone("held")
	c.Fails(exit.NotFound, []string{"hint: it was acknowledged by every group"}, "show", "q", "held")
	c.Fails(exit.NotFound, []string{"no such consumer group"}, "pending", "q", "--group", "other")
	w.Stop()
}

// --raw prints the payload byte by byte. Otherwise a text is cut for a terminal, and never in the middle of a
// character.
func TestShowRawPrintsThePayloadAndLargeOnesAreCutForPeople(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	payload := "\x00\x1b[2J\xff\n" + strings.Repeat("é", 5000)
	if r := c.RunIn(payload, "schedule", "q", "--id", "one", "--in", "1h"); r.Code != exit.OK {
		t.Fatal(r)
	}
	if out := c.OK("show", "q", "one", "--raw"); out != payload {
		t.Errorf("%d bytes, want %d", len(out), len(payload))
	}
	if text := output.PayloadText([]byte(strings.Repeat("é", 5000)), true); len(text) > 5000 ||
		!strings.Contains(text, "… and 5,904 more bytes: --raw") { // the payload has 10,000 bytes; 4,096 are shown
		t.Errorf("%d bytes: %s", len(text), text[len(text)-80:])
	}
	if text := output.PayloadText([]byte(strings.Repeat("é", 5000)), false); len(text) != 10_000 {
		t.Errorf("%d bytes", len(text))
	}
}
