package push

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// circuit is the circuit breaker of a target. It is closed at first. It opens after a number of consecutive failures
// that mean that the target is down, and closes when a probe shows that the target works. Each process has its own.
//
// A round of probes may fail because of its messages: the target may be unable to serve these messages, and able to
// serve all others. So each round takes twice as many messages as the round before, up to the target's Concurrency. Up
// to that size a good message behind n bad messages is reached in about log2(n) rounds; from then on each round passes
// Concurrency messages.
type circuit struct {
	log *slog.Logger

	mu                 sync.Mutex
	maxFailures        int // consecutive failures that open the circuit; -1 = the circuit never opens
	minPause, maxPause time.Duration

	open     bool
	failures int // consecutive failures while the circuit is closed
	openedAt time.Time
	pause    time.Duration      // before the next round of probes
	probes   int                // messages in the next round of probes
	end      context.CancelFunc // stops the running worker from taking messages
	probing  bool               // a round of probes runs, and no probe of this round has failed
}

func newCircuit(t Target, log *slog.Logger) *circuit {
	return &circuit{maxFailures: t.Failures, minPause: t.Interval, maxPause: t.MaxInterval, log: log}
}

// configure applies the new settings of a changed target. The circuit keeps its state and its count of failures, unless
// the circuit breaker is switched off.
func (c *circuit) configure(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxFailures, c.minPause, c.maxPause = t.Failures, t.Interval, t.MaxInterval
	c.pause = min(max(c.pause, c.minPause), c.maxPause)
	if c.maxFailures < 0 { // the circuit breaker is switched off
		c.open, c.failures = false, 0
	}
}

// begin registers a worker that begins to take messages; end stops the worker. begin returns how many messages to use
// as probes. It returns zero while the circuit is closed.
func (c *circuit) begin(end context.CancelFunc) (probes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.probing = end, c.open
	if !c.open {
		return 0
	}
	return c.probes
}

// wait returns how long to wait before the next message is taken. It returns zero while the circuit is closed. The
// pause has a random part, so that processes do not all probe a target at once.
func (c *circuit) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return 0
	}
	return c.pause - time.Duration(rand.Int64N(int64(c.pause)/5+1))
}

// record counts the outcome of a request. giveBack means that the circuit is open and the target down: the caller must
// release the message, so that no attempt is counted.
func (c *circuit) record(probe, down bool, err error) (giveBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !down && c.open && probe:
		c.open, c.probing, c.failures = false, false, 0
		c.end()
		c.log.Info("a target answers again: its circuit is closed",
			slog.Duration("after", time.Since(c.openedAt).Round(time.Millisecond)))
	case !down:
		c.failures = 0
	case c.open && probe && c.probing:
		c.probing = false
		c.pause = min(2*c.pause, c.maxPause)
		c.probes = min(2*c.probes, MaxConcurrency)
		c.end()
	case c.open: // a further failure of the same round, or of a request from before
	default:
		c.failures++
		if c.maxFailures > 0 && c.failures >= c.maxFailures {
			c.open, c.failures, c.openedAt = true, 0, time.Now()
			c.pause, c.probes = c.minPause, 1
			c.end()
			c.log.Warn("a target is down: its circuit is open, and probes alone are sent", slog.Any("error", err))
		}
		return false
	}
	return down
}
