package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// 25,000 messages are due in the same millisecond. None is lost, none is early, and no call of the drain script moves
// more than its limit.
func TestThousandsDueAtOnceAreAllDelivered(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	const n = 25_000
	at := time.UnixMilli(s.serverNow()).Add(3 * time.Second)
	batch := make([]bridge.NewMessage, n)
	for i := range batch {
		batch[i] = bridge.NewMessage{ID: fmt.Sprintf("m%05d", i), Payload: []byte("x"), At: at}
	}
	s.send(batch)
	before := server.Calls(t)
	s.bridge(quick())
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		return s.number("XLEN", s.keys().Stream) == n, "not drained"
	})
	after := server.Calls(t)
	// Each drain that takes members removes them by one ZREMRANGEBYRANK, and no other script here does. The number of
	// script calls proves nothing: some do other work, or find nothing due.
	calls := after["zremrangebyrank"] - before["zremrangebyrank"]
	if calls*scheduler.DefaultDrainLimit < n {
		t.Errorf("%d messages were moved by %d calls, and a call may move %d at most", n, calls, scheduler.DefaultDrainLimit)
	}
	s.worker("g", 500, nil)
	if r := s.awaitSettled(60*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%s", r)
	}
}

// A large schedule costs as much as a small one: 50 deliveries and a cancellation take the same number of commands
// beside 200,000 scheduled messages as beside none. (Inside Redis, a command on the schedule takes logarithmic time.)
func TestALargeScheduleCostsAsMuchAsASmallOne(t *testing.T) {
	t.Parallel()
	n := 200_000
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		n = 1_000_000
	}
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	k, ctx, c := s.keys(), context.Background(), s.redis.Client
	// cost returns how many commands the server executes for 50 deliveries and a cancellation.
	cost := func(what string) int {
		s.schedule(50, what, func(int) time.Duration { return time.Millisecond })
		far, err := s.client.Schedule(ctx, s.queue, []byte("x"), bridge.In(300*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		// The server accepted the message far after the 50 messages, 300 hours before far is due. 5 ms after that
		// moment, the 50 messages are due.
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return s.serverNow() > far.Due.Add(-300*time.Hour).UnixMilli()+5, "the clock stands still"
		})
		before := server.Calls(t)
		if d, err := lua.Drain(ctx, c, k, 500, 1<<20); err != nil || d.Moved != 50 {
			t.Fatal(d, err)
		}
		if err := s.client.Cancel(ctx, s.queue, far.ID); err != nil {
			t.Fatal(err)
		}
		notCounted := []string{"info", "hello", "client|setinfo", "ping", "script|load"}
		after, sum := server.Calls(t), 0
		for name, count := range after {
			if !slices.Contains(notCounted, name) {
				sum += count - before[name]
			}
		}
		return sum
	}
	cost("warm-") // loads the scripts
	small := cost("small-")
	due := strconv.FormatInt(s.serverNow()+240*time.Hour.Milliseconds(), 10)
	for from := 0; from < n; from += 10_000 {
		var cmds rueidis.Commands
		for at := from; at < from+10_000; at += 1000 {
			zadd, hset := make([]string, 0, 2000), make([]string, 0, 2000)
			for i := at; i < at+1000; i++ {
				id := fmt.Sprint("far-", i)
				zadd, hset = append(zadd, due, id), append(hset, id, "payload")
			}
			cmds = append(cmds, c.B().Arbitrary("HSET").Keys(k.Payload).Args(hset...).Build(),
				c.B().Arbitrary("ZADD").Keys(k.Due).Args(zadd...).Build())
		}
		for _, r := range c.DoMulti(ctx, cmds...) {
			if err := r.Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := s.number("ZCARD", k.Due); got != int64(n) {
		t.Fatalf("%d scheduled", got)
	}
	large := cost("large-")
	if large != small {
		t.Errorf("50 deliveries and a cancellation: %d commands beside %d messages, %d beside none", large, n, small)
	}
	s.bridge(quick())
	s.worker("g", 50, nil)
	s.schedule(1000, "due-", spreadOver(time.Second))
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.ledger.Summary("g").Lost == 0, s.ledger.Summary("g").String()
	})
	if r := s.ledger.Check(t, "g"); r.Duplicated != 0 || s.number("ZCARD", k.Due) != int64(n) {
		t.Errorf("%s, %d left", r, s.number("ZCARD", k.Due))
	}
	t.Logf("%d commands for 50 deliveries and a cancellation, beside %d messages", large, n)
}

// No key of a message expires, in whichever state the message waits: scheduled for a year, waiting for a retry, or as a
// dead letter.
func TestAWaitingMessageHasNoExpiringKey(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	s.bridge(quick())
	fail := errors.New("fails once")
	w, _ := s.worker("g", 4, func(_ context.Context, m *bridge.Message) error {
		if m.ID == "dead" {
			return bridge.DeadLetter(fail)
		}
		return bridge.RetryAfter(1000*time.Hour, fail)
	})
	for id, delay := range map[string]time.Duration{"year": 365 * 24 * time.Hour, "retry": 0, "dead": 0} {
		_, err := s.client.Schedule(context.Background(), s.queue, []byte("body"),
			bridge.WithID(id), bridge.In(delay), bridge.Header("k", "v"))
		if err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		st := w.Stats()
		return st.Retried == 1 && st.Dead == 1, fmt.Sprintf("%+v", st)
	})
	k := s.keys()
	for _, key := range []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead} {
		if ttl := s.number("PTTL", key); ttl != -1 {
			t.Errorf("%s: time to live %d", key, ttl)
		}
	}
	if bodies := s.number("HLEN", k.Payload); bodies != 2 {
		t.Errorf("%d bodies wait", bodies)
	}
}
