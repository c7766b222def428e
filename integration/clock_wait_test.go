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

// Redis ends a blocking read by its wall clock. If the clock jumps back by an hour, a read of two seconds blocks for an
// hour longer. The worker gives up such a read after a while. Redis must not deliver later messages to the read that
// the worker has given up.
func TestBlockedReadsOutliveAStepBack(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t)
	s := newStack(t, server)
	s.groups("g")
	s.bridge(quick())
	var laterAttempts atomic.Int32
	w := s.punctualWorker(10, func(_ context.Context, m *bridge.Message) error {
		if m.Attempt != 1 {
			laterAttempts.Add(1)
		}
		return nil
	})
	s.schedule(10, "before-", spreadOver(0))
	s.awaitSettled(10*time.Second, "g")
	clock.Step(-time.Hour)
	<-time.After(9 * time.Second) // longer than the worker waits for an answer: its block of 2 s, and 5 s more
	latest := time.Duration(0)
	for i := range 20 {
		s.schedule(1, fmt.Sprint("after-", i, "-"), spreadOver(0))
		sent := time.Now()
		redistest.Eventually(t, 15*time.Second, func() (bool, string) {
			return s.ledger.Summary("g").Lost == 0,
				s.ledger.Summary("g").String()
		})
		latest = max(latest, time.Since(sent))
	}
	t.Logf("latest: %s", latest.Round(time.Millisecond))
	if r := s.awaitSettled(20*time.Second, "g"); r.Duplicated != 0 || laterAttempts.Load() != 0 || w.Stats().Lost != 0 {
		t.Errorf("%s, %d further attempts, %+v", r, laterAttempts.Load(), w.Stats())
	}
}
