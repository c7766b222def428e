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

// startKeeper runs a keeper until the test ends.
func (r *rig) startKeeper(cfg Config, queues ...string) *Keeper {
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

// running returns the number of queues with a running upkeep loop.
func (k *Keeper) running() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.upkeeps)
}

// idle reports whether no upkeep runs and no queue is noticed.
func (k *Keeper) idle() (bool, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.upkeeps) == 0 && len(k.noticed) == 0, fmt.Sprintf("%d loops, %d noticed", len(k.upkeeps), len(k.noticed))
}

// After a notice, a keeper must free acknowledged entries and reclaim abandoned ones, and must end the upkeep of the
// queue when nothing is left to do.
func TestKeeperFreesReclaimsAndRests(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "100", "retry_min_ms": "60000", "retry_max_ms": "60000"})
	k := r.startKeeper(Config{KeepMax: 200 * time.Millisecond}, r.Queue)
	r.Groups("g")
	for round := range 3 {
		r.Fill(50)
		k.Notice(r.Queue)
		ids := r.Take("g", "c", 50)
		r.Xack("g", ids[1:]...) // the first entry is abandoned
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			length, scheduled := r.Length(r.Keys.Stream), r.Number("ZCARD", r.Keys.Due)
			return length == 0 && scheduled == int64(round+1), fmt.Sprintf("length %d, scheduled %d", length, scheduled)
		})
		redistest.Eventually(t, 10*time.Second, k.idle)
		// The next round schedules the same IDs, so no dedup window and no message of this round may be left.
		r.Do("DEL", r.Keys.Seen)
		for i := range 50 {
			r.Do("ZREM", r.Keys.Due, fmt.Sprint("m-", i))
		}
	}
}

// A keeper must begin the upkeep of a queue when it becomes its owner, without a notice, and must leave the queues of
// other owners alone.
func TestKeeperTakesOverWhatItComesToOwnAndLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(10)
	r.Xack("g", r.Take("g", "c", 10)...)
	k := r.startKeeper(Config{KeepMax: 100 * time.Millisecond})
	k.Notice(r.Queue) // without effect, because the keeper does not own the queue
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

// A group may hold an entry that somebody deleted from the stream, so that the stream is empty. The regular surveys of
// all queues seldom look at groups, so a keeper must look at the groups when it becomes the owner of a queue.
func TestKeeperFindsDeletedEntriesOfAQueueItComesToOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "100"})
	r.Groups("g")
	r.Fill(1)
	r.Do("XDEL", r.Keys.Stream, r.Take("g", "c", 1)[0])
	r.startKeeper(Config{KeepMax: 100 * time.Millisecond}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.Length(r.Keys.Dead)
		return n == 1, fmt.Sprintf("%d dead letters", n)
	})
}

// Regression: a keeper logged that its look at busy queues was failing, and never that it worked again:
//
//  1. A queue was noticed.
//  2. Another look started the upkeep of the queue.
//  3. The look for the notice failed. Because the upkeep was running, the keeper did not look at the queue again.
//  4. No other queue was noticed, so there was no look that could succeed.
func TestKeeperThatCouldNotLookSaysThatItWorksAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r := newRig(t, s)
	r.Fill(1)
	proxy := s.Proxy(t)
	var book queuetest.LogBook
	k := r.startKeeper(Config{Client: proxy.Client(t), Logger: book.Logger()}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	waitForLines := func(failing, again int) {
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
	waitForLines(1, 0)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { // without a noticed queue there is no further look
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.noticed[r.Queue], "the queue is not to be looked at again"
	})
	proxy.Refuse(false)
	waitForLines(1, 1)
}

// While nobody reads a queue there is nothing to free. The pauses between the passes of the upkeep must then grow,
// until the upkeep ends.
func TestKeeperGoesQuietWhileNobodyReads(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Fill(5)
	cfg := Config{KeepMin: 10 * time.Millisecond, KeepMax: 20 * time.Millisecond, QuietMax: 300 * time.Millisecond}
	k := r.startKeeper(cfg, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	m := s.Monitor(t)
	passes := func() int { return m.Commands()["XINFO"] }
	// It takes six passes to double from 20 to 300 ms. Then nothing is left to do until the next notice.
	redistest.Eventually(t, 10*time.Second, k.idle)
	if n := passes(); n > 12 {
		t.Errorf("%d passes", n)
	}
	m.Reset()
	k.Notice(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return passes() >= 4, fmt.Sprint(passes(), " passes")
	})
	redistest.Eventually(t, 10*time.Second, k.idle)
	redistest.Want(t, "nothing was trimmed", r.Length(r.Keys.Stream), int64(5))
}

// Queues that have only dedup windows to tidy, or nothing at all, must cost a few requests for all of them together.
func TestIdleQueuesCostTheKeeperNothing(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var queues []string
	for i := range 100 {
		queue := fmt.Sprint("q", i)
		queues = append(queues, queue)
		if i%2 == 0 { // an open dedup window, as a producer leaves it
			r.Do("ZADD", lua.NewKeys(r.Prefix, queue).Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
		}
	}
	k := r.startKeeper(Config{}, queues...)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return k.running() == 50, fmt.Sprint(k.running(), " loops")
	})
	m := s.Monitor(t)
	requests := func() (n int) {
		for _, times := range m.Asked() {
			n += times
		}
		return n
	}
	repeatFor3s := func(call func()) {
		t.Helper()
		start := time.Now()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			call()
			return time.Since(start) > 3*time.Second, "the three seconds are not over"
		})
	}
	repeatFor3s(func() {
		for i := 0; i < 100; i += 2 {
			k.Untidy(queues[i])
		}
	})
	if n := requests(); n > 4 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	// A noticed queue may be busy, so the keeper looks at all noticed queues: once a second, with one request for all.
	m.Reset()
	repeatFor3s(func() {
		for _, queue := range queues {
			k.Notice(queue)
		}
	})
	if n := requests(); n > 8 {
		t.Errorf("%d requests in 3s: %v", n, m.Commands())
	}
	redistest.Want(t, "loops", k.running(), 50)
}

// A queue whose upkeep waits for its turn to be tidied must be served at once when it becomes busy.
func TestUntidyQueueThatBecomesBusyIsKeptAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("ZADD", r.Keys.Seen, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "x")
	r.Groups("g")
	k := r.startKeeper(Config{}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return k.running() == 1, "no loop" })
	for range 2 {
		r.Ready(fmt.Sprint(time.Now().UnixNano()))
		k.Notice(r.Queue)
		r.Xack("g", r.Take("g", "c", 1)...)
		r.EventuallyLength(0)
	}
	redistest.Want(t, "loops", k.running(), 1)
}

// A keeper must remove ended dedup windows. An orphan is a body without a message: the keeper starts an upkeep for it,
// and must not delete it before a second look, because a producer writes the body before the message.
func TestKeeperRemovesEndedWindowsAndKeepsAnOrphanForASecondLook(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("ZADD", r.Keys.Seen, "1000", "ended")
	k := r.startKeeper(Config{TidyInterval: time.Millisecond}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.Number("EXISTS", r.Keys.Seen)
		return n == 0, "the window is still there"
	})
	r.Do("HSET", r.Keys.Payload, "orphan", "p")
	k.Untidy(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return k.running() == 1, "no loop for the orphan"
	})
	redistest.Want(t, "not deleted at once", r.Number("HLEN", r.Keys.Payload), int64(1))
}

// If the dead letters are a key of another type, an entry that should die stays pending. The keeper must log that once,
// must go on with the other entries, and must log when it works again.
func TestKeeperReportsAWrongTypeOnceAndGoesOn(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book queuetest.LogBook
	r.Groups("g")
	r.Do("SET", r.Keys.Dead, "not a stream")
	r.Policy(map[string]string{"visibility_ms": "100", "max_attempts": "1"})
	r.Ready("a")
	r.Take("g", "c", 1)
	k := r.startKeeper(Config{Logger: book.Logger()}, r.Queue)
	k.Notice(r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		calls := book.Count("upkeep is failing")
		return calls == 1, fmt.Sprint(calls, " lines")
	})
	redistest.Want(t, "still pending", r.Pending("g"), int64(1))
	// Entries behind the one that cannot become a dead letter are freed.
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

// A keeper must log an outage once, and go on after it.
func TestKeeperSurvivesAnOutage(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	r := newRig(t, s)
	var book queuetest.LogBook
	r.Groups("g")
	r.Fill(10)
	ids := r.Take("g", "c", 10)
	r.Xack("g", ids[1:]...)
	r.startKeeper(Config{Logger: book.Logger(), KeepMax: 100 * time.Millisecond}, r.Queue)
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

// A group that is destroyed while a keeper works on it must cause no error in the log.
func TestDestroyedGroupIsNoError(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	var book queuetest.LogBook
	r.Policy(map[string]string{"visibility_ms": "100"})
	r.Groups("g", "gone")
	r.Fill(200)
	r.Take("gone", "c", 200)
	r.startKeeper(Config{Logger: book.Logger(), KeepMin: 5 * time.Millisecond, KeepMax: 20 * time.Millisecond}, r.Queue)
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
		t.Error("a second call of Run returns no error")
	}
}
