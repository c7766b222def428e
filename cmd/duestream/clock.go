package main

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// follow makes now return the clock of Redis from here on.
func (a *app) follow(ctx context.Context, op *admin.Admin) {
	a.redisTime = func(queue string) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return op.Time(ctx, queue)
	}
}

// now returns the clock of the server that holds a queue, and for "" the clock of any server. Times of messages
// follow that clock. It falls back to the local clock if Redis does not answer within a second.
func (a *app) now(queue string) time.Time {
	if a.redisTime != nil {
		if now, err := a.redisTime(queue); err == nil {
			return now
		}
	}
	return time.Now()
}
