package main

import (
	"context"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// follow has now tell the clock of Redis from here on.
func (a *app) follow(ctx context.Context, op *admin.Admin) {
	a.redisTime = func(queue string) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return op.Time(ctx, queue)
	}
}

// now returns the time by the clock of the server that holds a queue, of any server for "": times of messages are by
// it. It is our own clock where Redis does not tell within a second.
func (a *app) now(queue string) time.Time {
	if a.redisTime != nil {
		if now, err := a.redisTime(queue); err == nil {
			return now
		}
	}
	return time.Now()
}
