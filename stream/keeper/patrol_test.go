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

// clockwork simulates a clock: a wait returns at once, and advances the clock by its duration.
type clockwork struct {
	mu     sync.Mutex
	passed time.Duration
	waits  int
	// waited is called at each wait with its number and duration. If it returns false, the patrol waits until it is
	// stopped.
	waited func(n int, d time.Duration) bool
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

// newPatrollingKeeper returns a keeper of the given queues whose patrol uses the clockwork.
func (r *rig) newPatrollingKeeper(c *clockwork, cfg Config, queues ...string) *Keeper {
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

// Regression: bodies without a member of the schedule stayed for ever if there were as many members without a body,
// because only the numbers of bodies and members were compared. So a keeper examines all bodies once in an interval.
func TestKeeperDeletesOrphansDespiteMembersWithoutABody(t *testing.T) {
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
		case d == orphanConfirm/patrolChecks: // the producer of "late" was only slow
			r.Do("ZADD", quiet.Due, "9e14", "late")
		}
		return rounds < 2
	}}
	k := r.newPatrollingKeeper(c, Config{Logger: book.Logger()}, r.Queue, "busy/1")
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
	left := r.Number("HEXISTS", busy.Meta, "whole") + r.Number("HEXISTS", quiet.Payload, "late")
	redistest.Want(t, "whole", left, int64(2))
	redistest.Want(t, "lines", book.Count(deletedOrphans), 4)
	redistest.Want(t, "failing", book.Count("failing"), 0)
}

// However many messages are scheduled, a round must read them in small requests with rests in between, and must
// remember only orphanCandidates possible orphans at a time. There are more orphans here, so the round confirms them in
// two parts.
func TestPatrolTakesALargeQueueInSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	const n = orphanCandidates + 5000
	r.Do("EVAL", "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 9e14, 'bare-' .. i) "+
		"redis.call('HSET', KEYS[2], 'orphan-' "+
		".. i, 'p') end",
		"2", r.Keys.Due, r.Keys.Payload, fmt.Sprint(n))
	confirms, rests := 0, 0
	c := &clockwork{waited: func(_ int, d time.Duration) bool {
		if d >= patrolMinPause && d <= surveyInterval {
			rests++
		} else if confirms++; d != orphanConfirm/patrolChecks {
			t.Errorf("a wait of %s", d)
		}
		return true
	}}
	k := r.newPatrollingKeeper(c, Config{}, r.Queue)
	if err := k.patrol.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "bodies", r.Number("HLEN", r.Keys.Payload), int64(0))
	redistest.Want(t, "waits to confirm two parts", confirms, 2*patrolChecks)
	if rests < n/orphanLimit/2 {
		t.Errorf("%d rests", rests)
	}
}

// A round must look at queues without bodies with one request for each lua.MaxSurvey queues.
func TestPatrolCostsIdleQueuesOneRequest(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	var queues []string
	for i := range lua.MaxSurvey {
		queues = append(queues, fmt.Sprint("q", i))
	}
	r.Do("ZADD", lua.NewKeys(r.Prefix, "q7").Due, "9e14", "bare")
	k := r.newPatrollingKeeper(&clockwork{}, Config{}, queues...)
	m := s.Monitor(t)
	for range 2 { // the first round also loads the script
		m.Reset()
		if err := k.patrol.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen := m.Asked()
	if len(seen) != 1 || seen["EVALSHA"] != 1 {
		t.Errorf("requests: %v", seen)
	}
}

// If the server is away for some rounds, the patrol must log one line when the outage begins and one when it ends, and
// then do its work.
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
		if d >= 10*time.Second && d != orphanConfirm/patrolChecks {
			if rounds++; rounds == 4 { // the first wait is before the first round
				s.Start()
			}
		}
		// Stop after the first successful round: a later one may use another connection from before the stop, and fail.
		return book.Count("works again") == 0
	}}
	k := r.newPatrollingKeeper(c, Config{Logger: book.Logger()}, r.Queue, "other")
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

// A body must be an orphan at all checks for orphanConfirm before it is deleted. The walk through a large queue takes
// longer than that. Meanwhile a candidate may have got its member and been delivered, and a body of the same name may
// belong to a producer that has not scheduled its message yet. That body must get its full time as well.
func TestPatrolOfALargeQueueWatchesWhatItFoundForAMinute(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Do("HSET", r.Keys.Payload, "nightly", "p")
	r.Do("ZADD", r.Keys.Due, "9e14", "bare")
	var c *clockwork
	var wrote time.Time
	c = &clockwork{waited: func(n int, d time.Duration) bool {
		switch {
		case n == 2: // the first step of the walk is over: "nightly" is noted as a possible orphan
			r.Do("ZADD", r.Keys.Due, "1", "nightly")
			r.Do("ZREM", r.Keys.Due, "nightly")
			r.Do("HDEL", r.Keys.Payload, "nightly")
			c.mu.Lock()
			c.passed += 10 * time.Minute // as long as the other steps of a large queue take
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
	k := r.newPatrollingKeeper(c, Config{}, r.Queue)
	if err := k.patrol.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "bodies of a producer that died", r.Number("HLEN", r.Keys.Payload), int64(0))
}
