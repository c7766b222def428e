package messages_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/messages"
	"github.com/duestream/duestream/integration/redistest"
)

// Each bulk command says how many messages it changed, left as they were, or did not find. An ID prefix is taken
// literally: "a-*" is no pattern.
func TestBulkSaysWhatBecameOfMessages(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, id := range []string{"a-1", "a-2", "a-*"} {
		c.OK("schedule", "q", "--id", id, "--in", "1h", "--header", "tenant=acme", "x")
	}
	c.OK("schedule", "q", "--id", "b", "--in", "2h", "x")
	c.Retries("q", "c", time.Now().Add(time.Hour), "g")
	out := c.OK("bulk", "cancel", "q", "--header", "tenant=acme", "--dry-run")
	if !strings.HasPrefix(out, "would be cancelled 3, gone 0\nID ") || !strings.Contains(out, "\na-* ") {
		t.Error(out)
	}
	if out = c.OK("bulk", "cancel", "q", "--id-prefix", "a-*", "--yes"); out != "cancelled 1, gone 0\n" {
		t.Error(out)
	}
	if out = c.OK("bulk", "reschedule", "q", "a-1", "b", "--at", "2099-01-01T00:00:00Z"); !strings.HasPrefix(out,
		"moved 2, due ") {
		t.Error(out)
	}
	if out = c.OK("bulk", "reschedule", "q", "a-1", "--at", "2098-01-01T00:00:00Z", "--spread",
		"10m"); !strings.HasPrefix(out,
		"moved 1, due within 10m from ") {
		t.Error(out)
	}
	if out = c.OK("bulk", "reschedule", "q", "a-1", "--at", "2099-01-01T00:00:00Z"); !strings.HasPrefix(out,
		"moved 1, due ") {
		t.Error(out)
	}
	var answer messages.BulkAnswer
	c.JSON(&answer, "bulk", "reschedule", "q", "--all", "--retries", "--at", "2099-01-01T00:00:00Z")
	// Changed are a-2 and the retry of c; a-1 and b are due at this time already.
	if answer.Changed != 2 || answer.Unchanged != 2 || answer.Gone != 0 || answer.To.Year() != 2099 || answer.Looked != 4 {
		t.Errorf("%+v", answer)
	}
	r := c.Fails(exit.Partly, []string{"not expired: 1 message"}, "bulk", "expire", "q", "b", "nobody")
	if !strings.HasPrefix(r.Out, "expired 1, gone 1\nnot expired:\nID ") || !strings.Contains(r.Out, "nobody") {
		t.Error(r.Out)
	}
	if out = c.OK("bulk", "expire", "q", "b"); out != "expired 0, already expired 1, gone 0\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"none of 2 IDs"}, "bulk", "cancel", "q", "nobody", "none")
	if out = c.OK("bulk", "cancel", "q", "--group", "g", "--yes"); out != "cancelled 1, gone 0\n" {
		t.Error(out)
	}
	if n := c.Scheduled("q"); n != 3 {
		t.Errorf("%d are left", n)
	}
}

// --ids-from reads an ID from each line, with any line end, and keeps braces and spaces. A file without IDs, or with a
// bad one, is refused as a whole.
func TestBulkTakesIDsFromAFile(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Fill("q", "m-", 2500, time.Now().Add(time.Hour)) // 2,400 of them are cancelled, and the one with the odd ID
	c.OK("schedule", "q", "--id", "{odd} ", "--in", "1h", "x")
	var lines strings.Builder
	for i := range 2400 {
		fmt.Fprintf(&lines, "m-%05d\r\n\n", i)
	}
	if r := c.RunIn(lines.String()+"{odd} \nm-00001", "bulk", "cancel", "q", "--ids-from", "-"); r.Code != exit.OK ||
		!strings.HasPrefix(r.Out, "cancelled 2,401, gone 0") {
		t.Errorf("%d %s%s", r.Code, r.Out, r.Err)
	}
	file := filepath.Join(t.TempDir(), "ids")
	for _, bad := range []string{"", "\n\n", "m-02400\nbad\x01\n", "m-02400\n\xff\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Fails(exit.Invalid, []string{file}, "bulk", "expire", "q", "--ids-from", file)
	}
	c.Fails(exit.Invalid, []string{"no such file"}, "bulk", "expire", "q", "--ids-from", file+"-none")
	if n := c.Scheduled("q"); n != 100 {
		t.Errorf("%d are left", n)
	}
}

// A bulk command needs an explicit selection. A bulk cancel without IDs also needs consent.
func TestBulkRefusesWhatDoesNotSayWhatIsMeant(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, line := range []string{"", "--retries", "--rate 5/s", "--all --id-prefix a", "m --all",
		"m --ids-from -", "--id-prefix a --rate 0/s", "--id-prefix a --rate x",
		"--header a", "--due-from tomorrow", "--group g --retries"} {
		for _, command := range []string{"cancel --yes", "expire", "reschedule --in 1h"} {
			words := strings.Fields("bulk " + strings.Replace(command+" ", " ", " q ", 1) + line)
			c.Fails(exit.Invalid, nil, words...)
		}
	}
	c.Fails(exit.Invalid, nil, "bulk", "reschedule", "q", "m")
	for _, flags := range []string{"--all", "--id-prefix a", "--header a=b", "--due-from 2026-01-02T00:00:00Z",
		"--group g",
		"--all --json"} {
		args := append([]string{"bulk", "cancel", "q"}, strings.Fields(flags)...)
		c.Fails(exit.Invalid, []string{"this deletes every scheduled message that the flags select", "add --yes"}, args...)
		c.Fails(exit.Unavailable, nil, append(args, "--dry-run")...)
		c.Fails(exit.Unavailable, nil, append(args, "--yes")...)
	}
	c.Fails(exit.Unavailable, nil, "bulk", "cancel", "q", "m")
}

// A run is killed in the middle. The same command is repeated while a bridge drains some of the messages. In the end
// each message is either cancelled or ready, and the cancelled messages leave nothing behind.
func TestBulkIsKilledAndGoesOn(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	const n = 3000
	c.Fill("q", "m-", n, time.Now().Add(time.Hour))
	cmd, out := c.Program(c.Args([]string{"bulk", "cancel", "q", "--all", "--yes", "--rate", "500/s"})...)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) { return members(c, "q") < n, out.String() })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	left := members(c, "q")
	if left == 0 {
		t.Fatal("all messages were cancelled before the kill")
	}
	soon := time.Now()
	for i := range 20 { // messages that become due while the others are cancelled
		c.Do("ZADD", c.Key("q", "due"), fmt.Sprint(soon.Add(time.Duration(i)*10*time.Millisecond).UnixMilli()),
			fmt.Sprintf("now-%02d", i))
	}
	c.Serve()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) { return c.Ready("q") > 0, "nothing is ready" })
	var answer messages.BulkAnswer
	c.JSON(&answer, "bulk", "cancel", "q", "--all", "--yes")
	ready := c.Ready("q")
	if answer.Changed+int(ready) != int(left)+20 || int64(answer.Gone) > ready {
		t.Errorf("%d were left, and 20 more; cancelled %d, gone %d, ready %d", left, answer.Changed, answer.Gone, ready)
	}
	if bodies := c.Size("HLEN", c.Key("q", "payload")); bodies != 0 || members(c, "q") != 0 {
		t.Errorf("%d payloads and %d members are left", bodies, members(c, "q"))
	}
}

// members returns how many messages of a queue are scheduled, by the size of the schedule.
func members(c *clitest.CLI, queue string) int64 { return c.Size("ZCARD", c.Key(queue, "due")) }
