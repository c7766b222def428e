package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Messages that are scheduled with redis-cli alone are delivered: one by a bare ZADD in a queue that is not registered,
// and one by the documented transaction (MULTI).
func TestRedisCLIAloneSchedules(t *testing.T) {
	t.Parallel()
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal("redis-cli is not on the PATH: install Debian's redis-tools, or redis-server")
	}
	server := redistest.Own(t)
	s := newStack(t, server)
	s.bridge(quick())
	w, _ := s.worker("g", 10, nil)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		_, err := s.raw("XPENDING", s.keys().Stream, "g").ToArray()
		return err == nil, fmt.Sprint("no group: ", err)
	})
	// The worker has registered its queue. The test deletes the registration, because it is about a queue that is
	// found only by its keys.
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return s.number("HDEL", s.prefix+":queues", s.queue) == 1, "the worker has not registered its queue"
	})
	run := func(input string, args ...string) {
		t.Helper()
		cmd := exec.Command(cli, append([]string{"-u", server.URL()}, args...)...)
		if input != "" {
			cmd.Stdin = strings.NewReader(input)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("redis-cli %v: %v\n%s", args, err, out)
		}
	}
	k := s.keys()
	due := time.Now().Add(300 * time.Millisecond).UnixMilli()
	s.ledger.Sent("order-42", due)
	run("", "ZADD", k.Due, fmt.Sprint(due), "order-42")

	due = time.Now().Add(500 * time.Millisecond).UnixMilli()
	s.ledger.Sent("order-43", due)
	run(fmt.Sprintf("MULTI\nHSET %s order-43 \"close it\"\nHSET %s order-43 \"{\\\"h:kind\\\":\\\"order\\\"}\"\nZADD %s %d "+
		"order-43\nXADD %s MAXLEN 1 * due_ms %d\nEXEC\n",
		k.Payload, k.Meta, k.Due, due, k.Wake, due))
	s.awaitSettled(30*time.Second, "g")
	if got := w.Stats().Acknowledged; got != 2 {
		t.Errorf("%d messages acknowledged", got)
	}
}

// A message that is scheduled by plain commands is delivered on time if they also add the wake token, which wakes the
// bridge. Without the token, the bridge may notice the message only after its longest sleep.
func TestWakeTokenOfPlainCommandsIsHeard(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(quick())
	s.worker("g", 10, nil)
	s.schedule(1, "first-", spreadOver(0))
	s.awaitSettled(10*time.Second, "g")
	k := s.keys()
	var worst time.Duration
	for i := range 20 {
		id := fmt.Sprint("m", i)
		due := time.Now().Add(50 * time.Millisecond).UnixMilli()
		s.ledger.Sent(id, due)
		s.raw("ZADD", k.Due, fmt.Sprint(due), id)
		s.raw("XADD", k.Wake, "MAXLEN", "1", "*", "due_ms", fmt.Sprint(due))
		sent := time.Now()
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return s.ledger.Summary("g").Lost == 0, "not delivered"
		})
		worst = max(worst, time.Since(sent))
	}
	t.Logf("longest time from a plain ZADD with a 50 ms delay to its delivery: %s", worst.Round(time.Millisecond))
	if worst > 4*time.Second {
		t.Errorf("a token was not heard: %s", worst)
	}
}
