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

func holdsBack(by string, moved int, wait time.Duration) func() (lua.Drained, error) {
	return func() (lua.Drained, error) { return lua.Drained{Moved: moved, Wait: wait, Held: by}, nil }
}

// A loop sleeps exactly until the next token of a rate.
func TestLoopSleepsUntilTheNextToken(t *testing.T) {
	script(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		expect(t, passed, 0, 2*time.Millisecond, 4*time.Millisecond, time.Hour+4*time.Millisecond, -1)
	}, holdsBack(lua.HeldByRate, 50, 2*time.Millisecond), holdsBack(lua.HeldByRate, 1, 2*time.Millisecond),
		holdsBack(lua.HeldByRate, 1, time.Hour), says(1, -1))
}

// Without room under a ready limit the checks become rarer, down to four a second; once there is room, they are
// frequent again.
func TestLoopLooksForRoomEverMoreRarely(t *testing.T) {
	const ms = time.Millisecond
	none := holdsBack(lua.HeldByReadyLimit, 0, 5*ms)
	script(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		expect(t, passed, 0, 5*ms, 15*ms, 35*ms, 75*ms, 155*ms, 315*ms, 635*ms, 1275*ms, 2275*ms, 2280*ms, -1)
	}, none, none, none, none, none, none, none, none, none, holdsBack(lua.HeldByReadyLimit, 3, 5*ms), says(1, -1))
}

// A message that a rate holds back is overdue on purpose: a bridge that serves it is ready.
func TestMessagesHeldBackMakeNoBridgeUnready(t *testing.T) {
	before := newDrainer(nil, &loop.Reporter{}, nil) // it does not run
	before.sawHead(time.Hour)
	if _, late := before.late("q", time.Now()); !late {
		t.Error("before the first drain nobody knows of a rate")
	}
	script(t, func(d *drainer, _ *lines, passed func() time.Duration) {
		expect(t, passed, 0)
		synctest.Wait()
		d.sawHead(time.Hour)
		if l, late := d.late("q", time.Now()); late {
			t.Errorf("held back: %s", l)
		}
		expect(t, passed, time.Hour)
		synctest.Wait()
		d.sawHead(time.Hour)
		if _, late := d.late("q", time.Now()); !late {
			t.Error("nothing is held back, and it is an hour late")
		}
	}, holdsBack(lua.HeldByRate, 1, time.Hour), says(1, -1))
}

// The lateness of a drain excludes the time for which a ready limit held messages.
func TestLatenessLeavesOutWhatAReadyLimitHeld(t *testing.T) {
	began := time.Now()
	var l limitedSince
	for i, c := range []struct {
		held       string
		late, want time.Duration
	}{
		{"", 7 * time.Second, 7 * time.Second}, {lua.HeldByReadyLimit, 8 * time.Second, 0},
		{lua.HeldByReadyLimit, 9 * time.Second, time.Second}, {"", 10 * time.Second, time.Second}, {"", 11 * time.Second, 11 * time.Second},
	} {
		d := lua.Drained{Moved: 1, Held: c.held, Late: c.late}
		l.leaveOut(&d, began.Add(time.Duration(i)*time.Second))
		redistest.Want(t, fmt.Sprint("lateness of drain ", i), d.Late, c.want)
	}
}

// A bridge that does not own a queue also drains it while its rate holds messages back: if the owner hangs or dies,
// none of the rate is lost.
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
			return r.Length(r.Keys.Stream) > 10, "drained by its owner"
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
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { return standing() == 2, "two of three stand by" })
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n := r.Number("ZCARD", r.Keys.Due)
			return n == 0 && standing() == 0, fmt.Sprint(n, " scheduled")
		})
	})
}

func stands(s *Scheduler, queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.standsBy[queue]
}
