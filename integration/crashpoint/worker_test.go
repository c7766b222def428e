package crashpoint

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// A worker is interrupted at each of its requests: while it joins, reads, settles, extends, and stops. It is
// interrupted again at each request with which it recovers from a lost reply of a read. Its group and another group
// get all messages. An attempt is used up only if the process died, and a handler runs twice only if the process died
// or was told to stop.
func TestWorkerInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bridge(r.redis)
	all := []mode{unsent, unheard, stops, dies}
	work := func(t *testing.T, f *fuse) { r.work(t, f, time.Minute, 0) } // longer than a busy machine delays an extend
	operation{name: "work", modes: all, run: work}.sweep(t)
	operation{name: "recover", modes: all, first: point{"XREADGROUP", 1}, run: work}.sweep(t)
	operation{name: "extend", modes: all, only: "extend",
		run: func(t *testing.T, f *fuse) { r.work(t, f, 5*time.Second, 2) }}.sweep(t)
}

// work lets a worker of group a handle one message of each kind, while group b fails one, too. The worker is stopped
// after the given number of extends. Entries are abandoned only where the process dies. In the other modes the
// visibility timeout is long, so that an entry that the worker forgets does not come back in time, or comes with a
// wrong attempt.
func (r *rig) work(t *testing.T, f *fuse, visibility time.Duration, extends int) {
	l := r.load(t)
	longVisibility := time.Minute // of group b, whose worker is not interrupted
	if f.mode == dies {
		visibility = 500 * time.Millisecond
	}
	retryMin, retryMax := 10*time.Millisecond, 20*time.Millisecond
	l.must(operator(l.redis, l.prefix).WritePolicy(l.ctx(), l.queue, "a",
		admin.PolicyUpdate{VisibilityTimeout: &visibility, RetryMin: &retryMin, RetryMax: &retryMax}))
	l.must(operator(l.redis, l.prefix).WritePolicy(l.ctx(), l.queue, "b",
		admin.PolicyUpdate{VisibilityTimeout: &longVisibility, RetryMin: &retryMin, RetryMax: &retryMax}))
	l.groups("a", "b")

	limited, expired := message("limited", 0), message("expired", 20*time.Millisecond)
	limited.MaxAttempts, expired.Expires = 1, time.Now().Add(10*time.Millisecond)
	l.send(message("plain", 0), message("fails", 0), message("given up", 0), message("held", 0), message("fails in b", 0),
		message("later", 30*time.Millisecond))
	l.sendToDie(limited) // it may be abandoned before a handler sees it
	l.sendToDie(expired)

	var stopped atomic.Bool
	handle := func(ctx context.Context, m *bridge.Message) error {
		switch {
		case m.ID == "limited", m.ID == "fails" && m.Attempt == 1:
			return errors.New("no")
		case m.ID == "given up":
			return bridge.DeadLetter(errors.New("never"))
		case m.ID == "held" && !stopped.Load():
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	l.worker(l.redis, "b", "", func(_ context.Context, m *bridge.Message) error {
		if m.ID == "fails in b" && m.Attempt == 1 {
			return errors.New("no")
		}
		return nil
	})
	w := l.worker(f.redis(t, l.server), "a", f.mode, handle)
	go func() {
		select {
		case <-f.blow:
			if f.mode == dies || f.mode == stops {
				w.cancel()
			}
		case <-w.done:
		}
	}()
	// Wait until all work of the worker is done, or its process has ended.
	l.until(func() (bool, string) {
		if w.over() {
			return true, ""
		}
		s := l.ledger.Summary("a", "b")
		ok := s.Lost == 0 && l.count("a", "fails") >= 2 && l.count("b", "fails in b") >= 2 && l.number("XLEN", l.k.Dead) == 3 &&
			f.kinds()["extend"] >= extends && l.pending("a") == 1 && l.number("XLEN", l.k.Stream) == 1
		return ok, s.String()
	})
	stopped.Store(true)
	if err := w.stop(); err != nil && f.mode != dies {
		t.Errorf("Run returned %v", err)
	}
	if f.mode != dies && l.number("ZCARD", l.k.Due)+l.number("XLEN", l.k.Stream) == 0 {
		t.Error("what was held when the worker stopped is gone")
	}
	l.worker(l.redis, "a", "", handle)

	reason := " max_attempts"
	l.dead = append(l.dead, "/expired expired", "a/given up dead_letter")
	l.until(func() (bool, string) { return l.number("XLEN", l.k.Dead) == 3, "a dead letter is missing" })
	if f.mode == dies && slices.Contains(l.deadLetters(), "a/limited visibility_timeout") {
		reason = " visibility_timeout" // its handler ran when the process died
	}
	l.dead = append(l.dead, "a/limited"+reason)
	l.rest("a", "b")
	lingers := f.mode == stops && l.count("a", "limited") == 2 // an error while the worker stops is no failure
	if l.count("b", "limited") != 1 || f.mode != dies && l.count("a", "limited") != 1 && !lingers {
		t.Error("a message that may fail once was not handled once")
	}
	burnt := 0 // attempts that the fault may use up
	if f.mode == dies {
		burnt = 1
	}
	l.checkAttempts(map[string]int{"a/fails": 2, "b/fails in b": 2}, burnt)
	if f.mode == "" || f.mode == unsent || f.mode == unheard {
		l.checkCalls(map[string]int{"a/fails": 2, "b/fails in b": 2, "a/held": 2})
	}
}

// sendToDie schedules a message that ends as a dead letter. The ledger does not expect its delivery.
func (l *load) sendToDie(m bridge.NewMessage) {
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: l.redis, Prefix: l.prefix})
	l.must(err)
	defer c.Close()
	results, err := c.ScheduleBatch(l.ctx(), l.queue, []bridge.NewMessage{m})
	l.must(errors.Join(err, results[0].Err))
	l.ledger.MaybeSent(m.ID, results[0].Due.UnixMilli())
}
