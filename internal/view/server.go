package view

import (
	"context"
	"fmt"
	"sync"
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
	type answer struct {
		now time.Time
		err error
	}
	answers := make(chan answer, len(nodes))
	// The slower nodes are not interrupted: the library makes a connection with the context of whoever needs it first,
	// and gives the error of that context to all who wait for the connection.
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), clockTimeout)
	var asking sync.WaitGroup
	for _, node := range nodes {
		asking.Go(func() {
			now, err := ServerTime(asked, node)
			answers <- answer{now, err}
		})
	}
	go func() {
		asking.Wait()
		cancel()
	}()
	for range nodes {
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case first := <-answers:
			if first.err == nil {
				return first.now, nil
			}
			err = first.err
		}
	}
	return now, err
}

// clockTimeout is the time limit of a question for a node's clock.
const clockTimeout = 5 * time.Second

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
