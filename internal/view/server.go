package view

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// ServerTime returns the server's clock.
func ServerTime(ctx context.Context, c rueidis.Client) (now time.Time, err error) {
	err = Ask(ctx, c, clockOf(c.B().Time().Build(), &now))
	return now, err
}

// ServerTimeOf returns the clock of the server that holds a key.
func ServerTimeOf(ctx context.Context, c rueidis.Client, key string) (now time.Time, err error) {
	err = Ask(ctx, c, clockOf(c.B().Time().Build().SetSlot(key), &now))
	return now, err
}

func clockOf(ask rueidis.Completed, now *time.Time) Question {
	return Into(ask, now, func(reply rueidis.RedisResult) (time.Time, error) {
		clock, err := reply.AsIntSlice()
		if err == nil && len(clock) != 2 {
			err = fmt.Errorf("%d values", len(clock))
		}
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(clock[0], clock[1]*int64(time.Microsecond)), nil
	})
}
