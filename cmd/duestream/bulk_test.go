package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// fill schedules messages by plain commands. Their IDs are the prefix followed by a number.
func (c *cli) fill(queue, prefix string, n int, due time.Time) {
	c.t.Helper()
	add := []string{"ZADD", c.key(queue, "due")}
	bodies := []string{"HSET", c.key(queue, "payload")}
	for i := range n {
		id := fmt.Sprintf("%s%05d", prefix, i)
		add, bodies = append(add, fmt.Sprint(due.UnixMilli()), id), append(bodies, id, "p")
	}
	c.do(bodies...)
	c.do(add...)
}

func TestBulkSaysWhatBecameOfMessages(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, id := range []string{"a-1", "a-2", "a-*"} {
		c.ok("schedule", "q", "--id", id, "--in", "1h", "--header", "tenant=acme", "x")
	}
	c.ok("schedule", "q", "--id", "b", "--in", "2h", "x")
	c.retries("q", "c", time.Now().Add(time.Hour), "g")
	out := c.ok("bulk", "cancel", "q", "--header", "tenant=acme", "--dry-run")
	if !strings.HasPrefix(out, "would be cancelled 3, gone 0\nID ") || !strings.Contains(out, "\na-* ") {
		t.Error(out)
	}
	if out = c.ok("bulk", "cancel", "q", "--id-prefix", "a-*", "--yes"); out != "cancelled 1, gone 0\n" {
		t.Error(out)
	}
	if out = c.ok("bulk", "reschedule", "q", "a-1", "b", "--at", "2099-01-01T00:00:00Z"); !strings.HasPrefix(out,
		"moved 2, due ") {
		t.Error(out)
	}
	if out = c.ok("bulk", "reschedule", "q", "a-1", "--at", "2098-01-01T00:00:00Z", "--spread", "10m"); !strings.HasPrefix(out,
		"moved 1, due within 10m from ") {
		t.Error(out)
	}
	if out = c.ok("bulk", "reschedule", "q", "a-1", "--at", "2099-01-01T00:00:00Z"); !strings.HasPrefix(out, "moved 1, due ") {
		t.Error(out)
	}
	var answer bulkAnswer
	c.json(&answer, "bulk", "reschedule", "q", "--all", "--retries", "--at", "2099-01-01T00:00:00Z")
	if answer.Changed != 2 || answer.Unchanged != 2 || answer.Gone != 0 || answer.To.Year() != 2099 || answer.Looked != 4 {
		t.Errorf("%+v", answer)
	}
	r := c.fails(exitPartly, []string{"not expired: 1 message"}, "bulk", "expire", "q", "b", "nobody")
	if !strings.HasPrefix(r.out, "expired 1, gone 1\nnot expired:\nID ") || !strings.Contains(r.out, "nobody") {
		t.Error(r.out)
	}
	if out = c.ok("bulk", "expire", "q", "b"); out != "expired 0, before 1, gone 0\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, []string{"none of 2 IDs"}, "bulk", "cancel", "q", "nobody", "none")
	if out = c.ok("bulk", "cancel", "q", "--group", "g", "--yes"); out != "cancelled 1, gone 0\n" {
		t.Error(out)
	}
	if n := c.scheduled("q"); n != 3 {
		t.Errorf("%d are left", n)
	}
}

func TestBulkTakesIDsFromAFile(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.fill("q", "m-", 2500, time.Now().Add(time.Hour))
	c.ok("schedule", "q", "--id", "{odd} ", "--in", "1h", "x")
	var lines strings.Builder
	for i := range 2400 {
		fmt.Fprintf(&lines, "m-%05d\r\n\n", i)
	}
	if r := c.runIn(lines.String()+"{odd} \nm-00001", "bulk", "cancel", "q", "--ids-from", "-"); r.code != exitOK ||
		!strings.HasPrefix(r.out, "cancelled 2,401, gone 0") {
		t.Errorf("%d %s%s", r.code, r.out, r.err)
	}
	file := filepath.Join(t.TempDir(), "ids")
	for _, bad := range []string{"", "\n\n", "m-02400\nbad\x01\n", "m-02400\n\xff\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		c.fails(exitInvalid, []string{file}, "bulk", "expire", "q", "--ids-from", file)
	}
	c.fails(exitInvalid, []string{"no such file"}, "bulk", "expire", "q", "--ids-from", file+"-none")
	if n := c.scheduled("q"); n != 100 {
		t.Errorf("%d are left", n)
	}
}

// A bulk command needs an explicit selection. A bulk cancel without IDs also needs consent.
func TestBulkRefusesWhatDoesNotSayWhatIsMeant(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	for _, line := range []string{"", "--retries", "--rate 5/s", "--all --id-prefix a", "m --all",
		"m --ids-from -", "--id-prefix a --rate 0/s", "--id-prefix a --rate x",
		"--header a", "--due-from tomorrow", "--group g --retries"} {
		for _, command := range []string{"cancel --yes", "expire", "reschedule --in 1h"} {
			words := strings.Fields("bulk " + strings.Replace(command+" ", " ", " q ", 1) + line)
			c.fails(exitInvalid, nil, words...)
		}
	}
	c.fails(exitInvalid, nil, "bulk", "reschedule", "q", "m")
	for _, flags := range []string{"--all", "--id-prefix a", "--header a=b", "--due-from 2026-01-02T00:00:00Z", "--group g",
		"--all --json"} {
		args := append([]string{"bulk", "cancel", "q"}, strings.Fields(flags)...)
		c.fails(exitInvalid, []string{"this deletes every scheduled message that the flags select", "add --yes"}, args...)
		c.fails(exitUnavailable, nil, append(args, "--dry-run")...)
		c.fails(exitUnavailable, nil, append(args, "--yes")...)
	}
	c.fails(exitUnavailable, nil, "bulk", "cancel", "q", "m")
}

// A run is killed in the middle. The same command is repeated while a bridge drains some of the messages. In the end
// each message is either cancelled or ready, and the cancelled messages leave nothing behind.
func TestBulkIsKilledAndGoesOn(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const n = 3000
	c.fill("q", "m-", n, time.Now().Add(time.Hour))
	cmd, out := c.program(c.args([]string{"bulk", "cancel", "q", "--all", "--yes", "--rate", "500/s"})...)
	redistest.Eventually(t, patience, func() (bool, string) { return c.members("q") < n, out.String() })
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	left := c.members("q")
	if left == 0 {
		t.Fatal("it was done before it was killed")
	}
	soon := time.Now()
	for i := range 20 { // due while the rest is cancelled
		c.do("ZADD", c.key("q", "due"), fmt.Sprint(soon.Add(time.Duration(i)*10*time.Millisecond).UnixMilli()),
			fmt.Sprintf("now-%02d", i))
	}
	c.serve()
	redistest.Eventually(t, patience, func() (bool, string) { return c.ready("q") > 0, "nothing is ready" })
	var answer bulkAnswer
	c.json(&answer, "bulk", "cancel", "q", "--all", "--yes")
	ready := c.ready("q")
	if answer.Changed+int(ready) != int(left)+20 || int64(answer.Gone) > ready {
		t.Errorf("%d were left, and 20 more; cancelled %d, gone %d, ready %d", left, answer.Changed, answer.Gone, ready)
	}
	if bodies := c.size("HLEN", c.key("q", "payload")); bodies != 0 || c.members("q") != 0 {
		t.Errorf("%d payloads and %d members are left", bodies, c.members("q"))
	}
}

func (c *cli) ready(queue string) int64   { return c.size("XLEN", c.key(queue, "stream")) }
func (c *cli) members(queue string) int64 { return c.size("ZCARD", c.key(queue, "due")) }

func (c *cli) size(words ...string) int64 {
	c.t.Helper()
	m := c.do(words...)
	n, err := m.AsInt64()
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}
