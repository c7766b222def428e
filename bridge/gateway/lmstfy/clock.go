package lmstfy

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// clock tells the server's time. It asks the server twice a minute.
type clock struct {
	client rueidis.Client

	mu     sync.Mutex
	ahead  time.Duration
	asked  time.Time
	asking chan struct{} // closed when the running request ends; nil = none runs
}

const (
	askEvery   = 30 * time.Second
	askPatient = time.Second     // timeout of a request when an older answer is known
	askAgain   = 5 * time.Second // pause after a failed request
)

// now returns the server's time. When the last answer is too old, one caller asks the server again. Meanwhile the
// others use the last answer, and wait only if there is none yet.
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

// ask asks the server for its time. If that fails, the last answer stays in use.
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
