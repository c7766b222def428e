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
// A failed round of probes may have met messages that the target cannot serve, while it can serve all others. So each
// round takes twice as many messages as the one before: a good message behind n bad ones is reached after log2(n)
// rounds.
type circuit struct {
	log *slog.Logger

	mu          sync.Mutex
	failures    int // consecutive failures that open the circuit; -1 = it never opens
	first, most time.Duration

	open          bool
	failuresInRow int
	since         time.Time
	pause         time.Duration      // before the next probe
	probes        int                // messages of the next round of probes
	end           context.CancelFunc // stops the running worker from taking messages
	probing       bool               // a round of probes runs, and no probe of it has failed
}

func newCircuit(t Target, log *slog.Logger) *circuit {
	return &circuit{failures: t.Failures, first: t.Interval, most: t.MaxInterval, log: log}
}

// configure applies the new settings of a changed target. The circuit keeps its state and its count of failures, unless
// the circuit breaker is switched off.
func (c *circuit) configure(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.first, c.most = t.Failures, t.Interval, t.MaxInterval
	c.pause = min(max(c.pause, c.first), c.most)
	if c.failures < 0 {
		c.open, c.failuresInRow = false, 0 // the circuit breaker is switched off
	}
}

// begin registers a worker that begins to take messages; end stops it. It returns how many messages to use as probes;
// zero = the circuit is closed.
func (c *circuit) begin(end context.CancelFunc) (probes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.probing = end, c.open
	if !c.open {
		return 0
	}
	return c.probes
}

// wait returns how long to wait before the next message is taken: zero while the circuit is closed. The pause is
// jittered, so that processes do not all probe a target at once.
func (c *circuit) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return 0
	}
	return c.pause - time.Duration(rand.Int64N(int64(c.pause)/5+1))
}

// record counts the outcome of a request. giveBack means that the circuit is open and the target down: the message is
// to be released, so that no attempt is counted.
func (c *circuit) record(probe, down bool, err error) (giveBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !down && c.open && probe:
		c.open, c.probing, c.failuresInRow = false, false, 0
		c.end()
		c.log.Info("a target answers again: its circuit is closed", slog.Duration("after", time.Since(c.since).Round(time.Millisecond)))
	case !down:
		c.failuresInRow = 0
	case c.open && probe && c.probing:
		c.probing = false
		c.pause = min(2*c.pause, c.most)
		c.probes = min(2*c.probes, MaxConcurrency)
		c.end()
	case c.open:
	default:
		if c.failuresInRow++; c.failures > 0 && c.failuresInRow >= c.failures {
			c.open, c.failuresInRow, c.since, c.pause, c.probes = true, 0, time.Now(), c.first, 1
			c.end()
			c.log.Warn("a target is down: its circuit is open, and probes alone are sent", slog.Any("error", err))
		}
		return false
	}
	return down
}
