package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/hdt3213/delayqueue"
	"github.com/redis/go-redis/v9"
)

// Beginnings of payloads, by what the consumer does.
const (
	refuse = "refuse"
	hang   = "hang"
	ready  = "ready"
	later  = "later"
)

// makeDelayqueue makes messages: a tenth, but at most 2,000, waits for a retry, ten are unacknowledged, a fifth is
// ready, and the others are pending.
func makeDelayqueue(s settings) ([]made, error) {
	client := redis.NewClient(&redis.Options{Addr: s.redis})
	begin := time.Now()
	publisher := delayqueue.NewPublisher(queue, client)
	var all []made
	send := func(kind string, n int, at func() time.Time, options ...any) error {
		jobs := make([]made, n)
		err := each(n, func(i int) error {
			due := at()
			jobs[i] = made{Payload: fmt.Sprintf("\x00%s %06d", kind, i), State: kind}
			if kind == later {
				jobs[i].Due = due.UnixMilli()
			}
			return publisher.SendScheduleMsg(jobs[i].Payload, due, options...)
		})
		all = append(all, jobs...)
		return err
	}
	// consume starts a consumer that takes at most limit messages at a time; 0 = all that are ready. What it holds is
	// delivered again after a time that is long enough for this program to end before, on a slow machine too.
	consume := func(limit uint, callback func(payload string) bool) {
		delayqueue.NewQueue(queue, client, callback).WithFetchInterval(20 * time.Millisecond).WithFetchLimit(limit).
			WithConcurrent(4000).WithMaxConsumeDuration(max(s.lead, 30*time.Second)).
			WithLogger(log.New(io.Discard, "", 0)).StartConsume()
	}
	blocked := func(string) bool { select {} }
	is := func(command *redis.IntCmd, n int) (bool, error) {
		found, err := command.Result()
		return found == int64(n), err
	}
	ctx := context.Background()
	refused, hanging, waiting := min(2000, s.jobs/10), min(10, s.jobs/10), s.jobs/5
	now := func() time.Time { return time.Now().Add(-time.Second) }

	// The first consumer refuses messages, and never ends others.
	err := errors.Join(send(refuse, refused, now), send(hang, hanging, now))
	if err != nil {
		return nil, err
	}
	consume(0, func(payload string) bool {
		if strings.Contains(payload, refuse) {
			return false
		}
		return blocked(payload)
	})
	err = until("the messages are refused", func() (bool, error) {
		return is(client.ZCount(ctx, "dp:"+queue+":unack", "-inf", fmt.Sprint(time.Now().Unix())), refused)
	})
	if err != nil {
		return nil, err
	}
	// The second consumer makes them messages that wait for a retry, and takes one of them.
	consume(1, blocked)
	err = until("they wait for a retry", func() (bool, error) {
		return is(client.LLen(ctx, "dp:"+queue+":retry"), refused-1)
	})
	if err != nil {
		return nil, err
	}
	// The third consumer makes messages ready, and takes one of them.
	if err = send(ready, waiting, now); err != nil {
		return nil, err
	}
	consume(1, blocked)
	err = until("messages are ready", func() (bool, error) {
		return is(client.LLen(ctx, "dp:"+queue+":ready"), waiting-1)
	})
	if err != nil {
		return nil, err
	}
	rest := s.jobs - refused - hanging - waiting
	err = send(later, rest, func() time.Time { return s.due(begin) }, delayqueue.WithRetryCount(5))
	return all, err
}
