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

	mu      sync.Mutex
	offset  time.Duration // of the server's clock from this machine's clock
	askedAt time.Time     // when offset was last read; zero = offset is unknown
	asking  chan struct{} // closed when the running request ends; nil = no request runs
}

const (
	askEvery   = 30 * time.Second
	askTimeout = time.Second     // of a request while an older answer is in use
	askAgain   = 5 * time.Second // pause after a failed request
)

// now returns the server's time. When the last answer is too old, one caller asks the server again. Meanwhile the other
// callers use the last answer. They wait only if there is no answer yet.
func (c *clock) now(ctx context.Context) (time.Time, error) {
	for {
		c.mu.Lock()
		isKnown, asking := !c.askedAt.IsZero(), c.asking
		isFresh := time.Since(c.askedAt) <= askEvery
		if isKnown && (isFresh || asking != nil) {
			defer c.mu.Unlock()
			return time.Now().Add(c.offset), nil
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
	isKnown := !c.askedAt.IsZero()
	c.mu.Unlock()
	began, call := time.Now(), ctx
	if isKnown {
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(ctx, askTimeout)
		defer cancel()
	}
	now, err := view.ServerTime(call, c.client)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.asking)
	c.asking = nil
	switch {
	case err == nil:
		c.offset, c.askedAt = time.Until(now), began
	case !isKnown || ctx.Err() != nil:
		return time.Time{}, err
	default:
		c.askedAt = time.Now().Add(askAgain - askEvery) // so that the next request is due after askAgain
	}
	return time.Now().Add(c.offset), nil
}
