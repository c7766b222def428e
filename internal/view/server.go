package view

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// ServerTime returns the time of the server's clock. On a cluster it asks all nodes, and returns the first answer. To
// get the time of the server that holds a key, use ServerTimeOf.
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
	// The questions to the slower nodes are not cancelled. The library opens a connection with the context of the first
	// caller that needs it. If that context ends, all callers that wait for the connection get its error.
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

// ServerTimeOf returns the time of the server that holds a key. On a cluster it asks no other server: the times of a
// queue are by the clock of its own server, and a look at the queue must not depend on another one.
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
