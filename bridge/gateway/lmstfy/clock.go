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

	mu    sync.Mutex
	ahead time.Duration
	asked time.Time
}

const askEvery = 30 * time.Second

func (c *clock) now(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := time.Now(); began.Sub(c.asked) > askEvery {
		now, err := view.ServerTime(ctx, c.client)
		if err != nil {
			return time.Time{}, err
		}
		c.ahead, c.asked = time.Until(now), began
	}
	return time.Now().Add(c.ahead), nil
}
