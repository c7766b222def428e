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

const askEvery = 30 * time.Second

// now returns the time. One of those who want to know asks the server when it is time to; the others go by what it said last, and
// wait only where it has said nothing yet.
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

func (c *clock) ask(ctx context.Context) (time.Time, error) {
	began := time.Now()
	now, err := view.ServerTime(ctx, c.client)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.asking)
	c.asking = nil
	if err != nil {
		return time.Time{}, err
	}
	c.ahead, c.asked = time.Until(now), began
	return time.Now().Add(c.ahead), nil
}
