package keeper

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// clockwork simulates time: waits return at once and advance it.
type clockwork struct {
	mu     sync.Mutex
	passed time.Duration
	waits  int
	waited func(n int, d time.Duration) bool // called before a wait; false: the patrol waits until it is stopped
}

func (c *clockwork) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(1e9, 0).Add(c.passed)
}

func (c *clockwork) sleep(ctx context.Context, d time.Duration) bool {
	c.mu.Lock()
	c.waits++
	n := c.waits
	c.passed += d
	c.mu.Unlock()
	if c.waited != nil && !c.waited(n, d) {
		<-ctx.Done()
	}
	return ctx.Err() == nil
}

// patrolling returns a keeper of the given queues whose patrol uses the clockwork.
func (r *rig) patrolling(c *clockwork, cfg Config, queues ...string) *Keeper {
	r.T.Helper()
	cfg.Client, cfg.Prefix = r.Client, r.Prefix
	k, err := New(cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	k.patrol.now, k.patrol.sleep = c.now, c.sleep
	k.Own(queues)
	return k
}

// Bodies without a member used to stay for ever beside equally many members without a body, because only their numbers
// were compared. Now a keeper examines all of them once per interval.
func TestKeeperDeletesOrphansBehindMembersWithoutABody(t *testing.T) {
	t.Parallel()
	r, book := newRig(t, redistest.Shared(t)), &queuetest.LogBook{}
	quiet, busy := r.Keys, lua.NewKeys(r.Prefix, "busy/1")
	r.Do("XADD", busy.Stream, "*", "id", "unread") // entries that nobody reads
	for _, k := range []lua.Keys{quiet, busy} {
		bare, orphans := []string{"ZADD", k.Due}, []string{"HSET", k.Meta}
		for i := range 1200 {
			bare, orphans = append(bare, "9e14", fmt.Sprint("bare-", i)), append(orphans, fmt.Sprint("orphan-", i), "{}")
		}
		r.Do(bare...)
		r.Do(orphans...)
		r.Do("ZADD", k.Due, "9e14", "whole")
		r.Do("HSET", k.Payload, "whole", "p", "orphan", "p", "late", "p")
		r.Do("HSET", k.Meta, "whole", "{}", "orphan", "{}")
	}
	rounds := 0
	c := &clockwork{waited: func(_ int, d time.Duration) bool {
		switch {
		case d >= time.Minute:
			rounds++
		case d == orphanConfirm/patrolLooks: // a producer that was only slow
			r.Do("ZADD", quiet.Due, "9e14", "late")
		}
		return rounds < 2
	}}
	k := r.patrolling(c, Config{Logger: book.Logger()}, r.Queue, "busy/1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.Number("HLEN", quiet.Payload) + r.Number("HLEN", quiet.Meta) + r.Number("HLEN", busy.Payload) +
			r.Number("HLEN", busy.Meta)
		return n == 5, fmt.Sprintf("%d bodies, want those of whole, and of late", n)
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	redistest.Want(t, "whole", r.Number("HEXISTS", busy.Meta, "whole")+r.Number("HEXISTS", quiet.Payload, "late"), int64(2))
	redistest.Want(t, "lines", book.Count(deletedOrphans), 4)
	redistest.Want(t, "failing", book.Count("failing"), 0)
}

// However many messages are scheduled, a round takes bounded requests with rests in between, and remembers a bounded
// number of candidates.
func TestPatrolTakesALargeQueueInSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	const n = orphanCandidates + 5000
	r.Do("EVAL", "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 9e14, 'bare-' .. i) redis.call('HSET', KEYS[2], 'orphan-' "+
		".. i, 'p') end",
		"2", r.Keys.Due, r.Keys.Payload, fmt.Sprint(n))
	confirms, rests := 0, 0
	c := &clockwork{waited: func(_ int, d time.Duration) bool {
		if d >= patrolRest && d <= lookInterval {
			rests++
		} else if confirms++; d != orphanConfirm/patrolLooks {
			t.Errorf("a wait of %s", d)
		}
		return true
	}}
	k := r.patrolling(c, Config{}, r.Queue)
	if err := k.patrol.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "bodies", r.Number("HLEN", r.Keys.Payload), int64(0))
	redistest.Want(t, "confirmed in two turns", confirms, 2*patrolLooks)
	if rests < n/orphanLimit/2 {
		t.Errorf("%d rests", rests)
	}
}

// Queues without bodies cost one request per 250 of them.
func TestPatrolCostsIdleQueuesOneRequest(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var queues []string
	for i := range lua.MaxSurvey {
		queues = append(queues, fmt.Sprint("q", i))
	}
	r.Do("ZADD", lua.NewKeys(r.Prefix, "q7").Due, "9e14", "bare")
	k := r.patrolling(&clockwork{}, Config{}, queues...)
	m := s.Monitor(t)
	for range 2 { // a script is loaded at its first use
		m.Reset()
		if err := k.patrol.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen := m.Commands()
	for _, connecting := range []string{"PING", "HELLO", "CLIENT", "AUTH", "SELECT"} {
		delete(seen, connecting)
	}
	if len(seen) != 1 || seen["EVALSHA"] != 1 {
		t.Errorf("requests: %v", seen)
	}
}

// The server is away for some rounds: one line when that begins and one when it ends, and the rest of the work is done.
func TestPatrolReportsAFailureOnceAndGoesOn(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r, book := newRig(t, s), &queuetest.LogBook{}
	for _, k := range []lua.Keys{r.Keys, lua.NewKeys(r.Prefix, "other")} {
		r.Do("HSET", k.Payload, "orphan", "p")
		r.Do("ZADD", k.Due, "9e14", "bare")
	}
	s.Stop()
	rounds := 0
	c := &clockwork{waited: func(_ int, d time.Duration) bool {
		if d >= 10*time.Second && d != orphanConfirm/patrolLooks {
			if rounds++; rounds == 4 { // the first wait is before the first round
				s.Start()
			}
		}
		// The round after a successful one may use another connection from before the stop.
		return book.Count("works again") == 0
	}}
	k := r.patrolling(c, Config{Logger: book.Logger()}, r.Queue, "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		k.patrol.run(ctx)
		close(done)
	}()
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		return book.Count("works again") == 1, fmt.Sprint(book.Count("is failing"), " failing")
	})
	cancel()
	<-done
	redistest.Want(t, "lines", book.Count("looking for bodies without a due time is failing"), 1)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { // a connection from before the stop may end here
		n, err := r.Client.Do(t.Context(), r.Client.B().Exists().Key(r.Keys.Payload).Build()).AsInt64()
		return err == nil && n == 0, fmt.Sprint("the body is there: ", err)
	})
}

// A round of a large queue takes longer than the time of confirmation. A candidate that was not checked in between may
// have had a member, and been delivered. Now it may be another body, of a producer between HSET and ZADD.
func TestPatrolOfALargeQueueWatchesWhatItFoundForAMinute(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Payload, "nightly", "p")
	r.Do("ZADD", r.Keys.Due, "9e14", "bare")
	var c *clockwork
	var wrote time.Time
	c = &clockwork{waited: func(n int, d time.Duration) bool {
		switch {
		case n == 2: // the first step of the walk
			r.Do("ZADD", r.Keys.Due, "1", "nightly")
			r.Do("ZREM", r.Keys.Due, "nightly")
			r.Do("HDEL", r.Keys.Payload, "nightly")
			c.mu.Lock()
			c.passed += 10 * time.Minute // the other steps
			c.mu.Unlock()
			wrote = c.now()
			r.Do("HSET", r.Keys.Payload, "nightly", "q")
		case n > 2 && r.Number("HEXISTS", r.Keys.Payload, "nightly") == 0 && !wrote.IsZero():
			if age := c.now().Sub(wrote) - d; age < orphanConfirm {
				t.Errorf("deleted %s after it was written", age)
			}
			wrote = time.Time{}
		}
		return true
	}}
	k := r.patrolling(c, Config{}, r.Queue)
	if err := k.patrol.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "bodies of a producer that died", r.Number("HLEN", r.Keys.Payload), int64(0))
}
