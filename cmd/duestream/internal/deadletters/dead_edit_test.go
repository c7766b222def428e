package deadletters_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// dead edit schedules the changed message for the group of the letter, from attempt 1 on, and removes the letter. A dry
// run shows the result, and changes nothing.
func TestDeadEditSchedulesTheChangedMessage(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	letter := c.OneLetter("old")
	out := c.OK("dead", "edit", "q", letter, "--payload", "new", "--header", "tenant=other", "--unset-header", "debug",
		"--in", "1h", "--dry-run")
	for _, text := range []string{"would be redriven  order-42\n", "for                g\n", "header tenant      other\n",
		"due                in 1h\n", "payload (3 bytes):\nnew\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if p := c.Place("order-42"); p.State != "dead" {
		t.Errorf("a dry run: %+v", p)
	}
	c.OK("dead", "edit", "q", letter, "--payload", "new", "--header", "tenant=other", "--unset-header", "debug", "--in",
		"1h")
	p := c.Place("order-42")
	if p.State != "retrying" || p.Group != "g" || p.Attempt != 1 || string(p.Payload) != "new" ||
		fmt.Sprint(p.Headers) != "map[tenant:other]" ||
		p.MaxAttempts != 7 || time.Until(p.Due) < 50*time.Minute {
		t.Errorf("%+v", p)
	}
	c.Fails(exit.NotFound, nil, "dead", "edit", "q", letter, "--payload", "again")
}

// A payload that is not given stays, byte by byte. Headers that are not given stay.
func TestDeadEditLeavesWhatIsNotChanged(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	letter := c.OneLetter("bytes \x00\xff")
	var got struct {
		ID      string
		Payload admin.Payload
		Headers map[string]string
		In      int64 `json:"in_ms"`
	}
	c.JSON(&got, "dead", "edit", "q", letter, "--unset-header", "debug", "--in", "1h")
	p := c.Place("order-42")
	if string(p.Payload) != "bytes \x00\xff" || string(got.Payload) != string(p.Payload) ||
		got.In != 3600_000 || len(p.Headers) != 1 {
		t.Errorf("%+v %+v", p, got)
	}
}

// Bad input is refused before the command connects: nothing to change, a bad name of a letter or queue, values that are
// too large, and flags that exclude each other.
func TestDeadEditIsRefusedBeforeRedisIsTouched(t *testing.T) {
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	large := strings.Repeat("x", admin.MaxPayloadBytes+1)
	for _, args := range [][]string{
		{"q", "1-1"}, {"q", "nonsense", "--payload", "x"}, {"q/1", "1-1", "--payload", "x"}, {"q", "1-1", "--payload", large},
		{"q", "1-1", "--header", "a=1", "--unset-header", "a"}, {"q", "1-1", "--header", "a=" + large[:10_000]},
		{"q", "1-1", "--payload", "x", "--payload-file", "y"}, {"q", "1-1", "--payload-file", "/does/not/exist"},
		{"q", "1-1", "--payload", "x", "--in", "-1s"},
	} {
		c.Fails(exit.Invalid, nil, append([]string{"dead", "edit"}, args...)...)
	}
}

// Several users edit the same letter concurrently: one of them wins, and the group gets one message, with that
// payload.
func TestDeadEditOfOneLetterIsWonByOne(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "held=true")
	var ledger redistest.Ledger
	var all sync.WaitGroup
	codes := make([]int, 6)
	letter := c.OneLetter("old")
	for i := range codes {
		all.Go(func() { codes[i] = c.Run("dead", "edit", "q", letter, "--payload", fmt.Sprint("by ", i)).Code })
	}
	all.Wait()
	winner := -1
	for i, code := range codes {
		switch {
		case code == exit.OK && winner < 0:
			winner = i
		case code != exit.NotFound:
			t.Errorf("%d: exit code %d", i, code)
		}
	}
	if winner < 0 {
		t.Fatalf("nobody won: %v", codes)
	}
	ledger.Sent("order-42", 0)
	if p := c.Place("order-42"); string(p.Payload) != fmt.Sprint("by ", winner) {
		t.Errorf("%q was scheduled, %d won", p.Payload, winner)
	}
	c.OK("queue", "set", "q", "--create", "held=false")
	c.Serve()
	r := c.Redis()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		streams, err := r.Do(t.Context(), r.B().Xreadgroup().
			Group("g", "c").Count(10).Streams().Key(c.Key("q", "stream")).Id(">").Build()).AsXRead()
		for _, entry := range streams[c.Key("q", "stream")] {
			ledger.Delivered("g", entry.FieldValues["id"], time.Now().UnixMilli(), 0)
			if entry.FieldValues["payload"] != fmt.Sprint("by ", winner) || entry.FieldValues["for"] != "g" {
				t.Errorf("%+v", entry)
			}
		}
		return ledger.Summary("g").Delivered == 1, fmt.Sprint(err)
	})
	if got := ledger.Check(t, "g"); got.Duplicated > 0 {
		t.Error(got)
	}
	if n := c.Scheduled("q"); n != 0 {
		t.Errorf("%d are scheduled besides", n)
	}
}
