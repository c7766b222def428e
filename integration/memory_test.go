package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

type entry = rueidis.XRangeSlice

// Memory returns (guarantee G6): entries that every group has acknowledged are freed, although an older entry stays
// pending for the whole test. The stream shrinks to at most ten entries, with our worker and with workers that use only
// plain XACK, with one group and with two.
func TestG6MemoryReturns(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		for _, groups := range [][]string{{"a"}, {"a", "b"}} {
			for _, plain := range []bool{false, true} {
				t.Run(fmt.Sprintf("groups=%d/plain_xack=%t", len(groups), plain), func(t *testing.T) {
					t.Parallel()
					memoryReturns(t, server, groups, plain)
				})
			}
		}
	})
}

func memoryReturns(t *testing.T, server *redistest.Server, groups []string, plain bool) {
	n := 2000 // twenty nodes of the stream
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		n = 20_000
	}
	s := newStack(t, server)
	s.groups(groups...)
	s.bridge(bridge.Policy{VisibilityTimeout: time.Hour, MaxAttempts: 3, RetryMin: time.Second, RetryMax: time.Minute})
	pinned := s.pin("a")
	for _, g := range groups {
		if plain {
			s.plainWorker(g, recordIn(s.ledger, g))
		} else {
			s.worker(g, 200, nil)
		}
	}
	s.schedule(n, "m", spreadOver(0))
	start := time.Now()
	redistest.Eventually(t, 60*time.Second, func() (bool, string) {
		r := s.ledger.Summary(groups...)
		return r.Lost == 1, fmt.Sprintf("%+v", r) // the pinned one: group a holds it
	})
	passed := time.Now()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		left := s.number("XLEN", s.keys().Stream)
		return left <= 10, fmt.Sprint(left, " entries left behind one that is pending")
	})
	t.Logf("%d messages in %s; freed to %d entries within %s of the last one", n,
		passed.Sub(start).Round(time.Millisecond), s.number("XLEN", s.keys().Stream),
		time.Since(passed).Round(time.Millisecond))
	s.ledger.Delivered("a", pinned.ID, lua.EntryTime(pinned.EntryID).UnixMilli(), pinned.Due.UnixMilli())
	held := []lua.Held{{Entry: pinned.EntryID}}
	if _, err := lua.Ack(context.Background(), s.redis.Client, s.keys(), "a", held); err != nil {
		t.Fatal(err)
	}
	s.awaitSettled(20*time.Second, groups...)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := s.number("ZCARD", s.keys().Seen)
		return n == 0, fmt.Sprint(n, " tokens or dedup windows left in an idle queue")
	})
}

// pin schedules one message, and reads it with a consumer that does not acknowledge it.
func (s *stack) pin(group string) lua.Entry {
	s.t.Helper()
	s.schedule(1, "pinned-", spreadOver(0))
	var pinned lua.Entry
	redistest.Eventually(s.t, 10*time.Second, func() (bool, string) {
		reply := s.raw("XREADGROUP", "GROUP", group, "pinner", "COUNT", "1", "STREAMS", s.keys().Stream, ">")
		read, err := reply.AsXReadSlices()
		if err != nil || len(read[s.keys().Stream]) == 0 {
			return false, fmt.Sprint("nothing to pin: ", err)
		}
		e := read[s.keys().Stream][0]
		pinned = lua.ParseEntry(e.ID, e.FieldValues)
		return true, ""
	})
	return pinned
}

// The work of a script is bounded (guarantee G7). With a backlog of 60 payloads of 1 MiB and 20,000 small messages that
// are due at the same time, no script blocks the server for more than 200 ms.
func TestG7BoundedWork(t *testing.T) {
	t.Parallel()
	const tries = 3
	for try := 1; ; try++ {
		var worst time.Duration
		t.Run(fmt.Sprint("try ", try), func(t *testing.T) { worst = longestScript(t) })
		// All messages in one call would take hundreds of milliseconds. The bound is generous, because the machine is
		// shared. Other work on the machine can only make a call longer, so the best of a few tries counts.
		if t.Failed() || worst <= 200*time.Millisecond {
			return
		}
		if try == tries {
			t.Fatalf("in each of %d tries a script held the server for more than 200ms; in the last one for %s", tries, worst)
		}
	}
}

// longestScript sends many small messages and some large ones, all due at the same time. It returns the duration of the
// longest call of a script.
func longestScript(t *testing.T) time.Duration {
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	payload := make([]byte, 1<<20)
	batch := make([]bridge.NewMessage, 60)
	for i := range batch {
		batch[i] = bridge.NewMessage{ID: fmt.Sprint("big", i), Payload: payload, Delay: time.Second}
	}
	s.send(batch)
	s.schedule(20_000, "small", func(int) time.Duration { return time.Second })
	s.raw("CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "100000")
	s.bridge(quick())
	s.worker("g", 50, nil)
	s.awaitSettled(60*time.Second, "g")
	calls, err := s.raw("SLOWLOG", "GET", "100000").ToArray()
	if err != nil {
		t.Fatal(err)
	}
	var took []int64
	for _, call := range calls {
		cells, _ := call.ToArray() // ID, time, duration in µs, command
		command, _ := cells[3].AsStrSlice()
		if us, _ := cells[2].AsInt64(); len(command) > 0 && (command[0] == "EVALSHA" || command[0] == "EVAL") {
			took = append(took, us)
		}
	}
	slices.Sort(took)
	if len(took) < 40 {
		t.Fatalf("only %d script calls were seen", len(took))
	}
	longest := time.Duration(took[len(took)-1]) * time.Microsecond
	t.Logf("%d script calls: median %d µs, p99 %d µs, longest %s", len(took), took[len(took)/2], took[len(took)*99/100],
		longest)
	return longest
}

// Idle queues cost nothing (guarantee G8). A bridge that serves 100 empty queues sends at most two requests a second,
// not counting the commands inside scripts.
func TestG8IdleCostsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	s := newStack(t, server)
	var queues []string
	for i := range 100 {
		queues = append(queues, fmt.Sprint("queue-", i))
	}
	if _, err := lua.Register(context.Background(), s.redis.Client, lua.NewGlobals(s.prefix), queues); err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		if _, err := bridge.CreateGroup(context.Background(), s.redis, s.prefix, q, "g"); err != nil {
			t.Fatal(err)
		}
	}
	s.bridge(quick())
	// The first seconds are not idle: the bridge finds its queues.
	monitor := server.Monitor(t)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return monitor.Commands()["SCAN"] >= 2, fmt.Sprint("the first round is not over: ", monitor.Commands())
	})
	const window = 15 * time.Second
	monitor.Reset()
	<-time.After(window) // the length of the measurement, not a synchronisation
	n := monitor.Count()
	t.Logf("100 queues, idle: %d requests in %s = %.2f a second: %v", n, window, float64(n)/window.Seconds(),
		monitor.Commands())
	if n > int(2*window.Seconds()) {
		t.Errorf("%d requests in %s", n, window)
	}
}
