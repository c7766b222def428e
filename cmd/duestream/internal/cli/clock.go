package cli

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// useServerClock makes Now return the clock of Redis instead of the local clock.
func (a *App) useServerClock(ctx context.Context, op *admin.Admin) {
	a.serverClock = func(queue string) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return op.Time(ctx, queue)
	}
}

// Now returns the clock of the server that holds a queue, and for "" the clock of any server. Times of messages
// follow that clock. It falls back to the local clock if Redis does not answer within a second.
func (a *App) Now(queue string) time.Time {
	if a.serverClock != nil {
		if now, err := a.serverClock(queue); err == nil {
			return now
		}
	}
	return time.Now()
}
