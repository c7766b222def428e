package stream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// keep runs a keeper until the test ends.
func (r *rig) keep(cfg KeeperConfig, queues ...string) *Keeper {
	r.t.Helper()
	if cfg.Client == nil {
		cfg.Client = r.c
	}
	cfg.Prefix = r.prefix
	k, err := NewKeeper(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	k.Own(queues)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run returned %v", err)
		}
	})
	return k
}

func (k *Keeper) running() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.loops)
}

func (k *Keeper) idle() (bool, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.loops) == 0 && len(k.noticed) == 0, fmt.Sprintf("%d loops, %d noticed", len(k.loops), len(k.noticed))
}

func (r *rig) eventuallyLength(n int64) {
	r.t.Helper()
	redistest.Eventually(r.t, 10*time.Second, func() (bool, string) {
		got := r.length(r.k.Stream)
		return got == n, fmt.Sprintf("length %d, want %d", got, n)
	})
}

func TestKeeperFreesReclaimsAndRests(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.policy(map[string]string{"visibility_ms": "100", "retry_min_ms": "60000", "retry_max_ms": "60000"})
	k := r.keep(KeeperConfig{KeepMax: 200 * time.Millisecond}, r.queue)
	r.groups("g")
	for round := range 3 {
		r.fill(50)
		k.Notice(r.queue)
		ids := r.take("g", "c", 50)
		r.xack("g", ids[1:]...) // the first one is abandoned
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			length, scheduled := r.length(r.k.Stream), r.number("ZCARD", r.k.Due)
			return length == 0 && scheduled == int64(round+1), fmt.Sprintf("length %d, scheduled %d", length, scheduled)
		})
		redistest.Eventually(t, 10*time.Second, k.idle)
		r.do("DEL", r.k.Seen) // fill's IDs are not compared with it, but nothing may be left
		for i := range 50 {
			r.do("ZREM", r.k.Due, fmt.Sprint("m-", i))
		}
	}
}

func TestKeeperTakesOverWhatItComesToOwnAndLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("g")
	r.fill(10)
	r.xack("g", r.take("g", "c", 10)...)
	k := r.keep(KeeperConfig{KeepMax: 100 * time.Millisecond})
	k.Notice(r.queue) // not owned: nothing happens
	want(t, "noticed", len(k.takeNoticed()), 0)
	k.Own([]string{r.queue, "another"}) // nobody has to notice it
	r.eventuallyLength(0)
	redistest.Eventually(t, 10*time.Second, k.idle)

	r.fill(1)
	k.Notice(r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	k.Own([]string{"another"})
	want(t, "loops", k.running(), 0)
	r.xack("g", r.take("g", "c", 1)...)
	k.Own([]string{r.queue})
	r.eventuallyLength(0)
}

// A stream that is empty, and a group that holds what somebody deleted from it: a keeper that comes to own the queue looks at the group, because
// surveys do so only now and then.
func TestKeeperFindsDeletedEntriesOfAQueueItComesToOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.policy(map[string]string{"visibility_ms": "100"})
	r.groups("g")
	r.fill(1)
	r.do("XDEL", r.k.Stream, r.take("g", "c", 1)[0])
	r.keep(KeeperConfig{KeepMax: 100 * time.Millisecond}, r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.length(r.k.Dead)
		return n == 1, fmt.Sprintf("%d dead letters", n)
	})
}

func TestKeeperGoesQuietWhileNobodyReads(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.fill(5)
	k := r.keep(KeeperConfig{KeepMin: 10 * time.Millisecond, KeepMax: 20 * time.Millisecond, QuietMax: 300 * time.Millisecond}, r.queue)
	var u *upkeep
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		u = k.loops[r.queue]
		return u != nil, "no loop"
	})
	m := s.Monitor(t)
	passes := func() int { return m.Commands()["XINFO"] }
	// It takes six passes to double from 20 to 300 ms, and then nothing is left to do until somebody gives notice.
	redistest.Eventually(t, 10*time.Second, k.idle)
	if n := passes(); n > 12 {
		t.Errorf("%d passes", n)
	}
	m.Reset()
	k.Notice(r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return passes() >= 4, fmt.Sprint(passes(), " passes") })
	redistest.Eventually(t, 10*time.Second, k.idle)
	want(t, "nothing was trimmed", r.length(r.k.Stream), int64(5))
}

func TestIdleQueuesCostTheKeeperNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var queues []string
	for i := range 100 {
		queue := fmt.Sprint("q", i)
		queues = append(queues, queue)
		if i%2 == 0 { // as the SDK leaves it: a dedup window that is open for long
			r.do("ZADD", lua.NewKeys(r.prefix, queue).Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
		}
	}
	k := r.keep(KeeperConfig{}, queues...)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 50, fmt.Sprint(k.running(), " loops") })
	m := s.Monitor(t) // it sees pings, too: rueidis sends them on idle connections
	start := time.Now()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		for i := 0; i < 100; i += 2 {
			k.Untidy(queues[i])
		}
		return time.Since(start) > 3*time.Second, "watching"
	})
	if n := m.Count() - m.Commands()["PING"]; n > 4 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	// Notice cannot tell them from busy ones: one look for all, at most one a second.
	m.Reset()
	start = time.Now()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		for _, queue := range queues {
			k.Notice(queue)
		}
		return time.Since(start) > 3*time.Second, "watching"
	})
	if n := m.Count() - m.Commands()["PING"]; n > 8 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	want(t, "loops", k.running(), 50)
}

func TestUntidyQueueThatBecomesBusyIsKeptAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("ZADD", r.k.Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
	r.groups("g")
	k := r.keep(KeeperConfig{}, r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	for range 2 {
		r.ready(fmt.Sprint(time.Now().UnixNano()))
		k.Notice(r.queue)
		r.xack("g", r.take("g", "c", 1)...)
		r.eventuallyLength(0)
	}
	want(t, "loops", k.running(), 1)
}

func TestKeeperRemovesEndedWindowsAndConfirmedOrphans(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.do("ZADD", r.k.Seen, "1000", "ended")
	k := r.keep(KeeperConfig{TidyInterval: time.Millisecond}, r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.number("EXISTS", r.k.Seen)
		return n == 0, "the window is still there"
	})
	r.do("HSET", r.k.Payload, "orphan", "p")
	k.Untidy(r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		k.mu.Lock()
		u := k.loops[r.queue]
		k.mu.Unlock()
		return u != nil, "no loop for the orphan"
	})
	want(t, "not deleted at once", r.number("HLEN", r.k.Payload), int64(1))
}

func TestKeeperReportsAWrongTypeOnceAndGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book logBook
	r.groups("g")
	r.do("SET", r.k.Dead, "not a stream")
	r.policy(map[string]string{"visibility_ms": "100", "max_attempts": "1"})
	r.ready("a")
	r.take("g", "c", 1)
	k := r.keep(KeeperConfig{Logger: book.logger()}, r.queue)
	k.Notice(r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		calls := book.count("upkeep is failing")
		return calls == 1, fmt.Sprint(calls, " lines")
	})
	want(t, "still pending", r.pending("g"), int64(1))
	// What can be done goes on: memory is freed behind the entry that cannot be dead-lettered.
	r.ready("b")
	r.xack("g", r.take("g", "c", 1)...)
	r.eventuallyLength(1)
	r.do("DEL", r.k.Dead)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return len(r.letters()) == 1, "no dead letter" })
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return book.count("upkeep is working again") == 1, "no second line" })
	want(t, "lines", book.count("upkeep is failing"), 1)
	if n := book.count(r.k.Dead); n == 0 {
		t.Error("the key is not named")
	}
}

func TestKeeperSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, s)
	var book logBook
	r.groups("g")
	r.fill(10)
	ids := r.take("g", "c", 10)
	r.xack("g", ids[1:]...)
	r.keep(KeeperConfig{Logger: book.logger(), KeepMax: 100 * time.Millisecond}, r.queue)
	r.eventuallyLength(1)
	s.Kill()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return book.count("upkeep is failing") == 1, "nothing logged"
	})
	s.Start()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return book.count("upkeep is working again") == 1, "nothing logged" })
	r.xack("g", ids[0])
	r.eventuallyLength(0)
	want(t, "lines", book.count("upkeep is failing"), 1)
}

func TestDestroyedGroupIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book logBook
	r.policy(map[string]string{"visibility_ms": "100"})
	r.groups("g", "gone")
	r.fill(200)
	r.take("gone", "c", 200)
	r.keep(KeeperConfig{Logger: book.logger(), KeepMin: 5 * time.Millisecond, KeepMax: 20 * time.Millisecond}, r.queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return book.count("reclaimed abandoned entries") > 0, "nothing reclaimed"
	})
	for range 20 {
		r.do("XGROUP", "DESTROY", r.k.Stream, "gone")
		r.groups("gone")
		r.take("gone", "c", 50)
	}
	r.do("XGROUP", "DESTROY", r.k.Stream, "gone")
	r.xack("g", r.take("g", "c", 1000)...)
	r.eventuallyLength(0)
	want(t, "lines", book.count("failing"), 0)
}

func TestKeeperConfigIsRefusedAsAWhole(t *testing.T) {
	_, err := NewKeeper(KeeperConfig{Prefix: "a{b", KeepMin: -1, KeepMax: time.Second, QuietMax: time.Millisecond})
	for _, part := range []string{"prefix", "Client", "KeepMin", "QuietMax"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}

func TestKeeperRunsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	k, err := NewKeeper(KeeperConfig{Client: r.c})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := k.Run(ctx); err == nil {
		t.Error("Run may be called twice")
	}
}
