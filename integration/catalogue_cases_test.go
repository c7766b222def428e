package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
)

// Handlers take two visibility timeouts, in one process with a bridge that reclaims, beside quick messages. Each
// message is delivered once, because every held entry is extended from its delivery on, however slow its neighbours
// are.
func slowHandlersKeepTheirWork(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	policy := quick()
	policy.VisibilityTimeout = 4 * time.Second // longer than a busy machine stops a process
	s.bridge(policy)
	s.bridge(policy)
	w, _ := s.worker("g", 8, func(ctx context.Context, m *bridge.Message) error {
		if m.ID[0] != 's' {
			return nil
		}
		select {
		case <-time.After(2 * policy.VisibilityTimeout): // the work
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	s.schedule(7, "slow-", within(0)) // one slot stays free for the others
	s.schedule(200, "quick-", within(8*time.Second))
	r := s.settled(30*time.Second, "g")
	if st := w.Stats(); r.Duplicated != 0 || st.Lost != 0 || st.Retried != 0 {
		t.Errorf("%s, %+v: running work was taken for abandoned", r, st)
	}
}

// A worker holds and extends far more entries than one batch of the reclaimer, in front of entries of a dead
// consumer.
func abandonedBehindHeld(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	const held, abandoned = 1500, 300
	policy := quick()
	policy.VisibilityTimeout = 8 * time.Second // a third of it must suffice for 1,500 extends on a busy machine
	s.bridge(policy)
	finish := make(chan struct{})
	var running atomic.Int64
	first, _ := s.worker("g", held, func(ctx context.Context, m *bridge.Message) error {
		running.Add(1)
		select {
		case <-finish:
		case <-ctx.Done():
		}
		return nil
	})
	s.schedule(held+abandoned, "m", within(0))
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return running.Load() == held,
			fmt.Sprint(running.Load(), " run")
	})
	taken, err := s.raw("XREADGROUP", "GROUP", "g", "gone", "COUNT", fmt.Sprint(abandoned), "STREAMS", s.keys().Stream,
		">").AsXRead()
	if n := len(taken[s.keys().Stream]); err != nil || n != abandoned {
		t.Fatalf("%d entries abandoned: %v", n, err)
	}
	second, _ := s.worker("g", abandoned, nil)
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return second.Stats().Acknowledged >= abandoned, fmt.Sprintf("%+v", second.Stats())
	})
	close(finish)
	if r := s.settled(30*time.Second, "g"); r.Duplicated != 0 || first.Stats().Lost != 0 {
		t.Errorf("%s: what was held was taken as well: %+v", r, first.Stats())
	}
}

// A message that fails is delivered again, on a queue without any other traffic.
func failedComesBackAlone(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	policy := quick()
	policy.RetryMin, policy.RetryMax = 300*time.Millisecond, 300*time.Millisecond
	s.bridge(policy)
	var attempts []int
	var latest time.Duration
	var mu sync.Mutex
	s.worker("g", 4, func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		attempts = append(attempts, m.Attempt)
		latest = max(latest, lua.EntryTime(m.EntryID).Sub(m.Due))
		if m.Attempt < 4 {
			return errors.New("not yet")
		}
		return nil
	})
	s.schedule(1, "alone-", within(0))
	s.settled(20*time.Second, "g")
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(attempts, []int{1, 2, 3, 4}) {
		t.Errorf("attempts %v", attempts)
	}
	if latest > 3*time.Second { // the periodic drain after 5 s would have brought it, too
		t.Errorf("late by %s: it was not the retry that woke the bridge", latest)
	}
}

// An ID is scheduled again while the first message with that ID failed and waits: both are delivered, each with its
// own payload.
func sameIDWhileFailing(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	policy := quick()
	policy.RetryMin, policy.RetryMax = 500*time.Millisecond, 500*time.Millisecond
	s.bridge(policy)
	var mu sync.Mutex
	done := map[string]int{}
	s.worker("g", 4, func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if m.Attempt < 3 {
			return errors.New("fails twice")
		}
		done[string(m.Payload)]++
		return nil
	})
	for _, payload := range []string{"first", "second"} {
		if _, err := s.client.Schedule(context.Background(), s.queue, []byte(payload), bridge.WithID("same")); err != nil {
			t.Fatal(err)
		}
		s.ledger.Sent("same", 0)
		// Until it has left the stream and waits for its next attempt.
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			n, waiting := s.number("XLEN", s.keys().Stream), s.number("ZCARD", s.keys().Due)
			return n == 0 && waiting > 0, fmt.Sprint(n, waiting)
		})
	}
	s.settled(20*time.Second, "g")
	mu.Lock()
	defer mu.Unlock()
	if done["first"] != 1 || done["second"] != 1 {
		t.Errorf("handled to the end: %v", done)
	}
}

// 25,000 messages are due in the same millisecond: none is lost, none is early, and no call moves more than its
// limit.
func sameMillisecond(t *testing.T) {
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
		t.Errorf("%d messages were moved by %d calls: one moves %d at most", n, calls, scheduler.DefaultDrainLimit)
	}
	s.worker("g", 500, nil)
	if r := s.settled(60*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%s", r)
	}
}

// A large schedule costs as much as a small one: deliveries and cancels take the same number of commands. Inside
// Redis, the cost is logarithmic.
func hugeSchedule(t *testing.T) {
	n := 200_000
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		n = 1_000_000
	}
	server := redistest.Own(t)
	s := newStack(t, server)
	s.groups("g")
	k, ctx, c := s.keys(), context.Background(), s.redis.Client
	cost := func(what string) int {
		s.schedule(50, what, func(int) time.Duration { return time.Millisecond })
		far, err := s.client.Schedule(ctx, s.queue, []byte("x"), bridge.In(300*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { // until the 50 messages are due
			return s.serverNow() > far.Due.Add(-300*time.Hour).UnixMilli()+5, "the clock stands still"
		})
		before := server.Calls(t)
		if d, err := lua.Drain(ctx, c, k, 500, 1<<20); err != nil || d.Moved != 50 {
			t.Fatal(d, err)
		}
		if err := s.client.Cancel(ctx, s.queue, far.ID); err != nil {
			t.Fatal(err)
		}
		after, sum := server.Calls(t), 0
		for name, count := range after {
			if name != "info" && name != "hello" && name != "client|setinfo" && name != "ping" && name != "script|load" {
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
	s.schedule(1000, "due-", within(time.Second))
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.ledger.Summary("g").Lost == 0, s.ledger.Summary("g").String()
	})
	if r := s.ledger.Check(t, "g"); r.Duplicated != 0 || s.number("ZCARD", k.Due) != int64(n) {
		t.Errorf("%s, %d left", r, s.number("ZCARD", k.Due))
	}
	t.Logf("%d commands for 50 deliveries and a cancellation, beside %d messages", large, n)
}

// A message that waits for a year has no expiring key, in any of its states.
func bodyOutlivesItsDelay(t *testing.T) {
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
		if _, err := s.client.Schedule(context.Background(), s.queue, []byte("body"), bridge.WithID(id), bridge.In(delay),
			bridge.Header("k", "v")); err != nil {
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

// A live owner that cannot drain a queue (here only its heartbeats exist) delays nothing for long: any bridge drains
// messages that are overdue for more than five seconds. Heartbeats from the future do not count.
func ownerAliveButUnable(t *testing.T) {
	s := newStack(t, redistest.Shared(t))
	s.groups("g")
	stop := make(chan struct{})
	var beating sync.WaitGroup
	beat := func(names []string, ahead int64) {
		for _, name := range names {
			s.raw("ZADD", s.prefix+":bridges", fmt.Sprint(s.serverNow()+ahead), name)
		}
	}
	unable := make([]string, 30) // so many that our bridge owns almost nothing
	for i := range unable {
		unable[i] = fmt.Sprint("unable-", i)
	}
	beat(unable, 0)
	beating.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
				beat(unable, 0)
			}
		}
	})
	defer beating.Wait()
	defer close(stop)
	s.bridge(quick())
	s.worker("g", 4, nil)
	s.schedule(20, "overdue-", func(int) time.Duration { return 50 * time.Millisecond })
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return s.ledger.Summary("g").Lost == 0, s.ledger.Summary("g").String()
	})
	s.ledger.Check(t, "g")
	beat([]string{"future"}, time.Hour.Milliseconds())
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		score, err := s.raw("ZSCORE", s.prefix+":bridges", "future").ToString()
		return rueidis.IsRedisNil(err), "a heartbeat of the future is believed: " + score
	})
}
