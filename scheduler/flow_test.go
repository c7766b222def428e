package scheduler

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// holdsBack returns an answer of a drain that moved some messages, and held others back because of a rate or a limit.
func holdsBack(by string, moved int, wait time.Duration) func() (lua.Drained, error) {
	return func() (lua.Drained, error) { return lua.Drained{Moved: moved, Wait: wait, Held: by}, nil }
}

// If a rate holds messages back, the loop must sleep exactly until the next token of the rate.
func TestLoopSleepsUntilTheNextToken(t *testing.T) {
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0, 2*time.Millisecond, 4*time.Millisecond, time.Hour+4*time.Millisecond, -1)
	}, holdsBack(lua.HeldByRate, 50, 2*time.Millisecond), holdsBack(lua.HeldByRate, 1, 2*time.Millisecond),
		holdsBack(lua.HeldByRate, 1, time.Hour), drains(1, -1))
}

// If a ready limit leaves no room, the loop must look for room ever more rarely, in the end about once a second. Once
// it finds room, it must look often again.
func TestLoopLooksForRoomEverMoreRarely(t *testing.T) {
	const ms = time.Millisecond
	none := holdsBack(lua.HeldByReadyLimit, 0, 5*ms)
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0, 5*ms, 15*ms, 35*ms, 75*ms, 155*ms, 315*ms, 635*ms, 1275*ms, 2275*ms, 2280*ms, -1)
	}, none, none, none, none, none, none, none, none, none, holdsBack(lua.HeldByReadyLimit, 3, 5*ms), drains(1, -1))
}

// A message that a rate holds back is late on purpose, so it must not make its bridge unready.
func TestMessagesHeldBackMakeNoBridgeUnready(t *testing.T) {
	before := newDrainer(nil, &loop.Reporter{}, nil) // this loop does not run
	before.noteOldestDue(time.Hour)
	if _, late := before.late("q", time.Now()); !late {
		t.Error("not late before the first drain, although no rate is known")
	}
	runScripted(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		wantDrains(t, passed, 0)
		synctest.Wait()
		d.noteOldestDue(time.Hour)
		if l, late := d.late("q", time.Now()); late {
			t.Errorf("held back: %s", l)
		}
		wantDrains(t, passed, time.Hour)
		synctest.Wait()
		d.noteOldestDue(time.Hour)
		if _, late := d.late("q", time.Now()); !late {
			t.Error("not late, although nothing is held back and a message is an hour late")
		}
	}, holdsBack(lua.HeldByRate, 1, time.Hour), drains(1, -1))
}

// The lateness of a drain must leave out the time for which a ready limit held messages back. Drain i is i seconds
// after the first; want is the lateness that is left.
func TestLatenessLeavesOutWhatAReadyLimitHeld(t *testing.T) {
	began := time.Now()
	var l readyLimitHold
	for i, c := range []struct {
		held       string
		late, want time.Duration
	}{
		{"", 7 * time.Second, 7 * time.Second}, {lua.HeldByReadyLimit, 8 * time.Second, 0},
		{lua.HeldByReadyLimit, 9 * time.Second, time.Second}, {"", 10 * time.Second, time.Second}, {"", 11 * time.Second, 11 * time.Second},
	} {
		d := lua.Drained{Moved: 1, Held: c.held, Late: c.late}
		l.subtractFrom(&d, began.Add(time.Duration(i)*time.Second))
		redistest.Want(t, fmt.Sprint("lateness of drain ", i), d.Late, c.want)
	}
}

// While a rate holds messages of a queue back, bridges that do not own the queue must drain it, too. Otherwise, if the
// owner hangs or dies, messages that the rate allows would wait.
func TestOthersStandByWhileARateHoldsMessagesBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := queuetest.New(t, s)
		r.Do("HSET", r.Prefix+":queues", r.Queue, "1")
		for i := range 200 {
			r.Do("ZADD", r.Keys.Due, "1000", fmt.Sprint("m", i))
		}
		r.Policy(map[string]string{"rate": "100", "burst": "10"})
		b := start(t, s, r.Prefix)
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return r.Length(r.Keys.Stream) > 10, "the owner has not drained more than the burst"
		})
		all := []*Scheduler{b.Scheduler, start(t, s, r.Prefix).Scheduler, start(t, s, r.Prefix).Scheduler}
		standing := func() (n int) {
			for _, one := range all {
				if stands(one, r.Queue) {
					n++
				}
			}
			return n
		}
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return standing() == 2, "the two others do not stand by"
		})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n := r.Number("ZCARD", r.Keys.Due)
			return n == 0 && standing() == 0, fmt.Sprint(n, " scheduled")
		})
	})
}

// stands reports whether a scheduler drains a queue that it does not own.
func stands(s *Scheduler, queue string) bool {
	s.standby.mu.Lock()
	defer s.standby.mu.Unlock()
	return s.standby.partitions[queue]
}
