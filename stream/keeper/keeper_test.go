package keeper

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// keep runs a keeper until the test ends.
func (r *rig) keep(cfg Config, queues ...string) *Keeper {
	r.T.Helper()
	if cfg.Client == nil {
		cfg.Client = r.Client
	}
	cfg.Prefix = r.Prefix
	k, err := New(cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	k.Own(queues)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	r.T.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.T.Errorf("Run returned %v", err)
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

func TestKeeperFreesReclaimsAndRests(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "100", "retry_min_ms": "60000", "retry_max_ms": "60000"})
	k := r.keep(Config{KeepMax: 200 * time.Millisecond}, r.Queue)
	r.Groups("g")
	for round := range 3 {
		r.Fill(50)
		k.Notice(r.Queue)
		ids := r.Take("g", "c", 50)
		r.Xack("g", ids[1:]...) // the first one is abandoned
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			length, scheduled := r.Length(r.Keys.Stream), r.Number("ZCARD", r.Keys.Due)
			return length == 0 && scheduled == int64(round+1), fmt.Sprintf("length %d, scheduled %d", length, scheduled)
		})
		redistest.Eventually(t, 10*time.Second, k.idle)
		r.Do("DEL", r.Keys.Seen) // Fill's IDs are not looked up in it, but nothing may be left
		for i := range 50 {
			r.Do("ZREM", r.Keys.Due, fmt.Sprint("m-", i))
		}
	}
}

func TestKeeperTakesOverWhatItComesToOwnAndLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(10)
	r.Xack("g", r.Take("g", "c", 10)...)
	k := r.keep(Config{KeepMax: 100 * time.Millisecond})
	k.Notice(r.Queue) // not owned: no effect
	redistest.Want(t, "noticed", len(k.takeNoticed()), 0)
	k.Own([]string{r.Queue, "another"}) // no notice is needed
	r.EventuallyLength(0)
	redistest.Eventually(t, 10*time.Second, k.idle)

	r.Fill(1)
	k.Notice(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	k.Own([]string{"another"})
	redistest.Want(t, "loops", k.running(), 0)
	r.Xack("g", r.Take("g", "c", 1)...)
	k.Own([]string{r.Queue})
	r.EventuallyLength(0)
}

// An empty stream, and a group that holds a deleted entry: a keeper that gets the queue checks the group, because
// surveys do so only at times.
func TestKeeperFindsDeletedEntriesOfAQueueItComesToOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "100"})
	r.Groups("g")
	r.Fill(1)
	r.Do("XDEL", r.Keys.Stream, r.Take("g", "c", 1)[0])
	r.keep(Config{KeepMax: 100 * time.Millisecond}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.Length(r.Keys.Dead)
		return n == 1, fmt.Sprintf("%d dead letters", n)
	})
}

// A look failed for a queue that had been noticed again just before another look started its loop. The queue was left
// to that loop, nothing else was noticed, and the keeper never logged that it works again.
func TestKeeperThatCouldNotLookSaysThatItWorksAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r := newRig(t, s)
	r.Fill(1)
	proxy := s.Proxy(t)
	var book queuetest.LogBook
	k := r.keep(Config{Client: proxy.Client(t), Logger: book.Logger()}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	said := func(failing, again int) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			f, a := book.Count("looking at busy queues is failing"), book.Count("looking at busy queues works again")
			return f == failing && a == again, fmt.Sprint(f, " times failing, ", a, " times again")
		})
	}
	proxy.Refuse(true)
	proxy.CutAll()
	k.mu.Lock()
	k.noticed[r.Queue] = true
	loop.Poke(k.wake)
	k.mu.Unlock()
	said(1, 0)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { // else there would be nothing that works again
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.noticed[r.Queue], "the queue is not to be looked at again"
	})
	proxy.Refuse(false)
	said(1, 1)
}

func TestKeeperGoesQuietWhileNobodyReads(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Fill(5)
	k := r.keep(Config{KeepMin: 10 * time.Millisecond, KeepMax: 20 * time.Millisecond, QuietMax: 300 * time.Millisecond}, r.Queue)
	var u *upkeep
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		u = k.loops[r.Queue]
		return u != nil, "no loop"
	})
	m := s.Monitor(t)
	passes := func() int { return m.Commands()["XINFO"] }
	// It takes six passes to double from 20 to 300 ms. Then nothing is left to do until the next notice.
	redistest.Eventually(t, 10*time.Second, k.idle)
	if n := passes(); n > 12 {
		t.Errorf("%d passes", n)
	}
	m.Reset()
	k.Notice(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return passes() >= 4, fmt.Sprint(passes(), " passes") })
	redistest.Eventually(t, 10*time.Second, k.idle)
	redistest.Want(t, "nothing was trimmed", r.Length(r.Keys.Stream), int64(5))
}

func TestIdleQueuesCostTheKeeperNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var queues []string
	for i := range 100 {
		queue := fmt.Sprint("q", i)
		queues = append(queues, queue)
		if i%2 == 0 { // as the SDK leaves it: an open dedup window
			r.Do("ZADD", lua.NewKeys(r.Prefix, queue).Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
		}
	}
	k := r.keep(Config{}, queues...)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 50, fmt.Sprint(k.running(), " loops") })
	m := s.Monitor(t)
	requests := func() int { // without those that rueidis sends by itself: on idle connections, and on new ones
		return m.Count() - m.Commands()["PING"] - m.Commands()["HELLO"]
	}
	start := time.Now()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		for i := 0; i < 100; i += 2 {
			k.Untidy(queues[i])
		}
		return time.Since(start) > 3*time.Second, "watching"
	})
	if n := requests(); n > 4 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	// Notice cannot tell them from busy queues: one look for all, at most one a second.
	m.Reset()
	start = time.Now()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		for _, queue := range queues {
			k.Notice(queue)
		}
		return time.Since(start) > 3*time.Second, "watching"
	})
	if n := requests(); n > 8 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	redistest.Want(t, "loops", k.running(), 50)
}

func TestUntidyQueueThatBecomesBusyIsKeptAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("ZADD", r.Keys.Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
	r.Groups("g")
	k := r.keep(Config{}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	for range 2 {
		r.Ready(fmt.Sprint(time.Now().UnixNano()))
		k.Notice(r.Queue)
		r.Xack("g", r.Take("g", "c", 1)...)
		r.EventuallyLength(0)
	}
	redistest.Want(t, "loops", k.running(), 1)
}

func TestKeeperRemovesEndedWindowsAndConfirmedOrphans(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("ZADD", r.Keys.Seen, "1000", "ended")
	k := r.keep(Config{TidyInterval: time.Millisecond}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.Number("EXISTS", r.Keys.Seen)
		return n == 0, "the window is still there"
	})
	r.Do("HSET", r.Keys.Payload, "orphan", "p")
	k.Untidy(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		k.mu.Lock()
		u := k.loops[r.Queue]
		k.mu.Unlock()
		return u != nil, "no loop for the orphan"
	})
	redistest.Want(t, "not deleted at once", r.Number("HLEN", r.Keys.Payload), int64(1))
}

func TestKeeperReportsAWrongTypeOnceAndGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book queuetest.LogBook
	r.Groups("g")
	r.Do("SET", r.Keys.Dead, "not a stream")
	r.Policy(map[string]string{"visibility_ms": "100", "max_attempts": "1"})
	r.Ready("a")
	r.Take("g", "c", 1)
	k := r.keep(Config{Logger: book.Logger()}, r.Queue)
	k.Notice(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		calls := book.Count("upkeep is failing")
		return calls == 1, fmt.Sprint(calls, " lines")
	})
	redistest.Want(t, "still pending", r.Pending("g"), int64(1))
	// The rest goes on: entries behind the one that cannot be dead-lettered are freed.
	r.Ready("b")
	r.Xack("g", r.Take("g", "c", 1)...)
	r.EventuallyLength(1)
	r.Do("DEL", r.Keys.Dead)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return len(r.letters()) == 1, "no dead letter" })
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return book.Count("upkeep works again") == 1,
			"no second line"
	})
	redistest.Want(t, "lines", book.Count("upkeep is failing"), 1)
	if n := book.Count(r.Keys.Dead); n == 0 {
		t.Error("the key is not named")
	}
}

func TestKeeperSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, s)
	var book queuetest.LogBook
	r.Groups("g")
	r.Fill(10)
	ids := r.Take("g", "c", 10)
	r.Xack("g", ids[1:]...)
	r.keep(Config{Logger: book.Logger(), KeepMax: 100 * time.Millisecond}, r.Queue)
	r.EventuallyLength(1)
	s.Kill()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return book.Count("upkeep is failing") == 1, "nothing logged"
	})
	s.Start()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return book.Count("upkeep works again") == 1,
			"nothing logged"
	})
	r.Xack("g", ids[0])
	r.EventuallyLength(0)
	redistest.Want(t, "lines", book.Count("upkeep is failing"), 1)
}

func TestDestroyedGroupIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book queuetest.LogBook
	r.Policy(map[string]string{"visibility_ms": "100"})
	r.Groups("g", "gone")
	r.Fill(200)
	r.Take("gone", "c", 200)
	r.keep(Config{Logger: book.Logger(), KeepMin: 5 * time.Millisecond, KeepMax: 20 * time.Millisecond}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return book.Count("reclaimed abandoned entries") > 0, "nothing reclaimed"
	})
	for range 20 {
		r.Do("XGROUP", "DESTROY", r.Keys.Stream, "gone")
		r.Groups("gone")
		r.Take("gone", "c", 50)
	}
	r.Do("XGROUP", "DESTROY", r.Keys.Stream, "gone")
	r.Xack("g", r.Take("g", "c", 1000)...)
	r.EventuallyLength(0)
	redistest.Want(t, "lines", book.Count("failing"), 0)
}

func TestConfigIsRefusedAsAWhole(t *testing.T) {
	_, err := New(Config{Prefix: "a{b", KeepMin: -1, KeepMax: time.Second, QuietMax: time.Millisecond})
	for _, part := range []string{"prefix", "redis", "KeepMin", "QuietMax"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
}

func TestKeeperRunsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	k, err := New(Config{Client: r.Client})
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
