package push

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// circuit knows whether a target is worth a request. It is closed at first, opens after so many failures in a row that say that
// the target is down, and closes when a probe does not. Each process has its own.
//
// A round of probes that failed may have met messages that the target cannot serve, while it serves all others. So each round
// takes twice as many messages as the one before: what is well is found behind n others after log2(n) rounds.
type circuit struct {
	log *slog.Logger

	mu          sync.Mutex
	failures    int // that open it; -1 = never
	first, most time.Duration

	open    bool
	row     int
	since   time.Time
	pause   time.Duration      // before the next probe
	width   int                // messages of the next round of probes
	end     context.CancelFunc // has the worker that runs now take nothing more
	probing bool               // a round of probes runs, and none of it has failed
}

func newCircuit(t Target, log *slog.Logger) *circuit {
	return &circuit{failures: t.Failures, first: t.Interval, most: t.MaxInterval, log: log}
}

// adopt has the circuit of a target that was changed follow its new numbers. It stays open or closed, and goes on counting.
func (c *circuit) adopt(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.first, c.most = t.Failures, t.Interval, t.MaxInterval
	c.pause = min(max(c.pause, c.first), c.most)
	if c.failures < 0 {
		c.open, c.row = false, 0 // it is switched off
	}
}

// begin tells of the worker that begins to take messages. It returns how many messages to probe with; zero = the circuit is
// closed.
func (c *circuit) begin(end context.CancelFunc) (probes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.probing = end, c.open
	if !c.open {
		return 0
	}
	return c.width
}

// wait returns how long no message is to be taken: nothing while the circuit is closed. Processes that all found the target down
// do not come back all at once.
func (c *circuit) wait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return 0
	}
	return c.pause - time.Duration(rand.Int64N(int64(c.pause)/5+1))
}

// note takes the outcome of a request, which was a probe or not. giveBack: the circuit is open and the target down, so this was
// no attempt.
func (c *circuit) note(probe, down bool, err error) (giveBack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !down && c.open && probe:
		c.open, c.probing, c.row = false, false, 0
		c.end()
		c.log.Info("a target answers again: its circuit is closed", slog.Duration("after", time.Since(c.since).Round(time.Millisecond)))
	case !down:
		c.row = 0
	case c.open && probe && c.probing:
		c.probing = false
		c.pause = min(2*c.pause, c.most)
		c.width = min(2*c.width, MaxConcurrency)
		c.end()
	case c.open:
	default:
		if c.row++; c.failures > 0 && c.row >= c.failures {
			c.open, c.row, c.since, c.pause, c.width = true, 0, time.Now(), c.first, 1
			c.end()
			c.log.Warn("a target is down: its circuit is open, and probes alone are sent", slog.Any("error", err))
		}
		return false
	}
	return down
}
