package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// serverNow returns the time of the server's clock, in Unix ms.
func (s *stack) serverNow() int64 {
	now, err := s.raw("TIME").AsIntSlice()
	if err != nil || len(now) != 2 {
		s.t.Errorf("TIME: %v, %v", now, err)
		return 0
	}
	return now[0]*1000 + now[1]/1000
}

// punctualWorker runs a worker of group g that records deliveries with the server's time when a message arrives. Entry
// IDs would not do: they never decrease, so after a step back of the clock they would hide an early message.
func (s *stack) punctualWorker(concurrency int, handle bridge.Handler) *bridge.Worker {
	s.t.Helper()
	w, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: s.redis, Prefix: s.prefix, Queue: s.queue, Group: "g", Concurrency: concurrency, Logger: s.log,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			s.ledger.Delivered("g", m.ID, s.serverNow(), m.Due.UnixMilli())
			if handle == nil {
				return nil
			}
			return handle(ctx, m)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.run("worker", w.Run)
	return w
}

// liveBridges returns how many bridges have sent a heartbeat lately.
func (s *stack) liveBridges() int64 { return s.number("ZCARD", s.prefix+":bridges") }

// requestsIn returns the requests per second that an idle server gets, measured for d.
func requestsIn(m *redistest.Monitor, d time.Duration) float64 {
	m.Reset()
	<-time.After(d) // the time of the measurement
	return float64(m.Count()) / d.Seconds()
}

// The server's clock jumps back by an hour while messages are scheduled, held and waited for. Nothing is delivered
// before its due time by that clock, no loop spins, the bridges stay members, and messages that are due are
// delivered. After the clock is set right again, all messages are delivered, and no running work was reclaimed.
func TestServerClockJumpsBackAndForthAgain(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	s := newStack(t, server)
	monitor := server.Monitor(t)
	s.groups("g")
	s.bridge(quick())
	s.bridge(quick())
	release := make(chan struct{})
	var held atomic.Int32
	w := s.punctualWorker(10, func(ctx context.Context, m *bridge.Message) error {
		if len(m.ID) > 4 && m.ID[:4] == "held" {
			held.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	s.schedule(3, "held-", spreadOver(0))
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return held.Load() == 3 && s.liveBridges() == 2,
			fmt.Sprint(held.Load(), s.liveBridges())
	})
	// due an hour and a second after the step back
	s.schedule(20, "second-", func(int) time.Duration { return time.Second })

	clock.Step(-time.Hour)
	s.schedule(20, "now-", spreadOver(300*time.Millisecond))
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		missing := s.ledger.Missing("g", 30)
		return len(missing) == 20 && missing[0] == "second-000000", fmt.Sprint(missing)
	})
	rate := requestsIn(monitor, 4*time.Second)
	t.Logf("an hour back: %.1f requests a second", rate)
	// Without a loop that spins, two bridges with heartbeats, surveys and reclaims, a worker that extends three times a
	// second, and the clients of MONITOR make far fewer than 60 requests a second.
	if rate > 60 {
		t.Errorf("%.1f requests a second while nothing is due: something spins", rate)
	}
	if n := s.liveBridges(); n != 2 {
		t.Errorf("%d bridges are members after the step back", n)
	}
	if n := len(s.ledger.Missing("g", 30)); n != 20 {
		t.Errorf("%d of the 20 messages of an hour later were delivered", 20-n)
	}

	clock.Step(time.Hour)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		missing := s.ledger.Missing("g", 30)
		return len(missing) == 0, fmt.Sprint(missing)
	})
	close(release)
	if r := s.awaitSettled(20*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%d messages were delivered again: held entries were taken for abandoned", r.Duplicated)
	}
	if st := w.Stats(); st.Lost != 0 {
		t.Errorf("worker: %+v", st)
	}
}

// The server's clock jumps ahead by an hour, so all pending entries look idle for an hour within one round trip.
// Messages that are due by the new clock are delivered within seconds. Live workers keep their entries, because the
// reclaim script compares the clock with the time of its last check: an hour without any check does not count as idle
// time.
func TestServerClockJumpsAheadTakesNoRunningWork(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	s := newStack(t, server)
	s.groups("g")
	policy := quick()
	policy.VisibilityTimeout = 3 * time.Second // longer than a busy machine stops a process
	s.bridge(policy)
	const n = 20
	release := make(chan struct{})
	var held, lost atomic.Int32 // handlers that hold a message, and handlers whose context was cancelled
	w := s.punctualWorker(n, func(ctx context.Context, m *bridge.Message) error {
		if m.Due.After(time.Now().Add(30 * time.Minute)) { // the messages of an hour later
			return nil
		}
		held.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
			lost.Add(1)
		}
		return nil
	})
	s.schedule(n-2, "held-", spreadOver(0))
	s.schedule(30, "hour-", func(int) time.Duration { return time.Hour })
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return held.Load() == n-2, fmt.Sprint(held.Load()) })
	// Several steps, each at another time between two heartbeats, and after a visibility timeout without steps.
	for step := range 4 {
		clock.Step(time.Hour)
		<-time.After(policy.VisibilityTimeout + time.Duration(1300+270*step)*time.Millisecond)
	}
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		missing := s.ledger.Missing("g", 40)
		return len(missing) == 0, fmt.Sprint(missing)
	})
	if lost.Load() != 0 || w.Stats().Lost != 0 {
		t.Errorf("%d running handlers lost their deliveries to a step of the clock: %+v", lost.Load(), w.Stats())
	}
	close(release)
	if r := s.awaitSettled(20*time.Second, "g"); r.Duplicated != 0 {
		t.Errorf("%d messages were delivered again", r.Duplicated)
	}
}

// Entries whose consumer is gone are reclaimed although the server's clock was stepped, an hour ahead or back. The step
// delays the reclaim by at most a visibility timeout.
func TestAbandonedWorkIsTakenBackAfterAStepOfTheClock(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, clock := redistest.OwnClock(t)
			s := newStack(t, server)
			s.groups("g")
			s.bridge(quick())
			s.schedule(50, "before-", spreadOver(0))
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				return s.number("XLEN", s.keys().Stream) == 50, "not drained"
			})
			clock.Step(by)
			s.raw("XREADGROUP", "GROUP", "g", "gone", "COUNT", "50", "STREAMS", s.keys().Stream, ">")
			s.worker("g", 10, nil)
			if r := s.awaitSettled(20*time.Second, "g"); r.Sent != 50 {
				t.Errorf("%+v", r)
			}
		})
	}
}
