package lmstfy

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// clock tells the time by the server's clock, which it looks at twice a minute.
type clock struct {
	client rueidis.Client

	mu     sync.Mutex
	ahead  time.Duration
	asked  time.Time
	asking chan struct{} // is closed when the server has answered; nil: nobody asks
}

const (
	askEvery   = 30 * time.Second
	askPatient = time.Second     // how long one who knows the time waits for a newer answer
	askAgain   = 5 * time.Second // after a question without an answer
)

// now returns the time. One of those who want to know asks the server when it is time to; the others go by what it said
// last, and wait only where it has said nothing yet.
func (c *clock) now(ctx context.Context) (time.Time, error) {
	for {
		c.mu.Lock()
		known, asking := !c.asked.IsZero(), c.asking
		if known && (asking != nil || time.Since(c.asked) <= askEvery) {
			defer c.mu.Unlock()
			return time.Now().Add(c.ahead), nil
		}
		if asking == nil {
			c.asking = make(chan struct{})
			c.mu.Unlock()
			return c.ask(ctx)
		}
		c.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// ask asks the server. When it does not answer, what it said before holds on.
func (c *clock) ask(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	known := !c.asked.IsZero()
	c.mu.Unlock()
	began, call := time.Now(), ctx
	if known {
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(ctx, askPatient)
		defer cancel()
	}
	now, err := view.ServerTime(call, c.client)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.asking)
	c.asking = nil
	switch {
	case err == nil:
		c.ahead, c.asked = time.Until(now), began
	case !known || ctx.Err() != nil:
		return time.Time{}, err
	default:
		c.asked = time.Now().Add(askAgain - askEvery)
	}
	return time.Now().Add(c.ahead), nil
}
