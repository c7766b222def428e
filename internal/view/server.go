package view

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// ServerTime returns the server's clock, or that of the node of a cluster that answers first. Where there is a key, use
// ServerTimeOf.
func ServerTime(ctx context.Context, c rueidis.Client) (now time.Time, err error) {
	nodes := c.Nodes()
	if c.Mode() != rueidis.ClientModeCluster || len(nodes) == 0 {
		err = Ask(ctx, c, clockOf(c.B().Time().Build(), &now))
		return now, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, len(nodes))
	for _, node := range nodes {
		go func() {
			now, err := ServerTime(ctx, node)
			answers <- answer{now, err}
		}()
	}
	for range nodes {
		first := <-answers
		if first.err == nil {
			return first.now, nil
		}
		err = first.err
	}
	return now, err
}

// ServerTimeOf returns the clock of the server that holds a key. On a cluster it asks no other one: a look at a queue
// needs the queue's own server only, and its times are by that clock.
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
