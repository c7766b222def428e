package push

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// messages returns n messages m0, m1, … without payload, due at once.
func messages(n int) (all []bridge.NewMessage) {
	for i := range n {
		all = append(all, bridge.NewMessage{ID: fmt.Sprint("m", i)})
	}
	return all
}

// wantFirstAttempts fails the test unless the target got the first attempts of n messages, each once, and nothing else.
func (v *receiver) wantFirstAttempts(t *testing.T, n int) {
	t.Helper()
	seen := map[string]int{}
	for _, r := range v.requests() {
		seen[r.Get(HeaderID)]++
		redistest.Want(t, "attempt", r.Get(HeaderAttempt), "1")
	}
	redistest.Want(t, "messages", len(seen), n)
	redistest.Want(t, "requests", len(v.requests()), n)
}

// All processes together post no more than the target's rate allows. A process that stops releases the messages that
// wait for the rate, and no attempt is counted.
func TestProcessesShareTheRateOfATarget(t *testing.T) {
	t.Parallel()
	g, v := newRig(t), newReceiver(t, nil)
	target := to(v.URL)
	target.Rate, target.Burst = "40/s", 5
	g.set(target)
	stop := g.run()
	g.run()
	const n = 65 // 5 of the burst at once, and then 60 at 40/s
	begin := time.Now()
	g.schedule("q", messages(n)...)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return len(v.requests()) > 15, "few requests" })
	stop()
	g.awaitDone("q")
	if took, least := time.Since(begin), (n-5)*time.Second/40; took < least {
		t.Errorf("%d messages took %s, which is less than %s", n, took, least)
	}
	v.wantFirstAttempts(t, n)
	bucket := newRateLimit(target, Config{Redis: g.r, Prefix: g.prefix}).key
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		there, err := g.r.Client.Do(t.Context(), g.r.Client.B().Exists().Key(bucket).Build()).AsInt64()
		return there == 0 && err == nil, "the bucket of the rate does not expire"
	})
}

// A message that waits for a rate of one an hour is posted as soon as the rate is changed, with the same attempt.
func TestAChangedRateHoldsAtOnce(t *testing.T) {
	t.Parallel()
	g, v := newRig(t), newReceiver(t, nil)
	target := to(v.URL)
	target.Rate = "1/h"
	g.set(target)
	g.run()
	g.schedule("q", messages(12)...)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return len(v.requests()) == 1 && g.pending("q") == 0 && g.left("q") == 11,
			fmt.Sprint(len(v.requests()), " requests, ", g.pending("q"), " pending")
	})
	target.Rate = "1/s"
	g.set(target)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return len(v.requests()) >= 2, "a message still waits for the former rate"
	})
	target.Rate = ""
	g.set(target)
	g.awaitDone("q")
	v.wantFirstAttempts(t, 12)
}

// A message that waits for the rate stays in the queue, so processes that are killed, however often, use up none of its
// attempts.
func TestNothingIsTakenBeforeTheRateAllowsIt(t *testing.T) {
	t.Parallel()
	g, v := newRig(t), newReceiver(t, nil)
	target := to(v.URL)
	target.Rate = "1/s"
	g.set(target)
	g.run()
	g.run()
	g.schedule("q", messages(5)...)
	most := 0
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		waiting := g.pending("q")
		most = max(most, waiting)
		return len(v.requests()) == 5 && waiting == 0, fmt.Sprint(len(v.requests()), " requests")
	})
	if most > 2 { // each of two processes may hold the next message
		t.Errorf("%d messages were held", most)
	}
	v.wantFirstAttempts(t, 5)
}

// A server at maxmemory refuses only scheduling. Regression: nothing was posted to a target with a rate while the
// server was full.
func TestAFullServerStopsNoTargetWithARate(t *testing.T) {
	t.Parallel()
	g, v := newRigOn(t, redistest.Own(t)), newReceiver(t, nil)
	target := to(v.URL)
	target.Rate, target.Burst = "100/s", 5
	g.set(target)
	g.schedule("q", messages(40)...)
	queuetest.Do(t, g.r.Client, "CONFIG", "SET", "maxmemory", "1")
	g.run()
	g.awaitDone("q")
	v.wantFirstAttempts(t, 40)
	_, err := g.client.Schedule(t.Context(), "q", nil)
	redistest.Want(t, "scheduling is refused as full", errors.Is(err, bridge.ErrFull), true)
}

// While the rate's bucket cannot be read from Redis, nothing is posted, and the log has one line about it.
func TestNothingIsPostedWhileTheRateIsNotKnown(t *testing.T) {
	t.Parallel()
	g, v := newRig(t), newReceiver(t, nil)
	target := to(v.URL)
	target.Rate = "1000/s"
	bucket := newRateLimit(target, Config{Redis: g.r, Prefix: g.prefix}).key
	queuetest.Do(t, g.r.Client, "HSET", bucket, "a", "b")
	g.set(target)
	g.run()
	g.schedule("q", messages(3)...)
	const says = "worker is failing"
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return g.log.Count(says) > 0, "the log does not say so" })
	redistest.Want(t, "requests", len(v.requests()), 0)
	queuetest.Do(t, g.r.Client, "DEL", bucket)
	g.awaitDone("q")
	v.wantFirstAttempts(t, 3)
	redistest.Want(t, "lines", g.log.Count(says), 1)
}

// A target with an invalid rate or burst is refused. A valid rate comes back from Redis in its normal form.
func TestRatesThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate  lua.Rate
		burst int
		valid bool
	}{{"", 0, true}, {"5", 0, true}, {"5/m", 1_000_000, true}, {"0/s", 0, false}, {"5/d", 0, false}, {"", 1, false}, {"5/s", -1, false},
		{"5/s", 1_000_001, false}} {
		target := to("https://example.com/")
		target.Rate, target.Burst = c.rate, c.burst
		err := target.Check()
		if (err == nil) != c.valid || !c.valid && !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%q, %d: %v", c.rate, c.burst, err)
		}
		if c.valid {
			again, err := parseTarget("q", "g", target.text())
			redistest.Want(t, "read again", fmt.Sprint(again.Rate, again.Burst, err), fmt.Sprint(c.rate.Normal(), c.burst, nil))
		}
	}
}
