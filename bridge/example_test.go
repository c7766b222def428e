package bridge_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

func ExampleClient_Schedule() {
	ctx, r, prefix, end := begin()
	defer end()

	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	receipt, err := client.Schedule(ctx, "orders", []byte(`{"order":42}`),
		bridge.In(15*time.Minute), bridge.WithID("close-42"), bridge.Header("trace", "7f3a"), bridge.MaxAttempts(3))
	check(err)
	fmt.Println(receipt.ID, "is due in", time.Until(receipt.Due).Round(time.Minute))

	// While the message is scheduled, its ID is refused.
	_, err = client.Schedule(ctx, "orders", nil, bridge.WithID("close-42"))
	fmt.Println("again:", errors.Is(err, bridge.ErrDuplicate))

	// An invalid argument is refused before Redis is asked, with the reason.
	_, err = client.Schedule(ctx, "no such/name", nil)
	var invalid *bridge.InvalidError
	fmt.Println(errors.As(err, &invalid), invalid.Field)
	// Output:
	// close-42 is due in 15m0s
	// again: true
	// true queue
}

func ExampleClient_Send() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	reminder := bridge.NewMessage{
		ID: "remind-42", Payload: []byte(`{"order":42}`), Headers: map[string]string{"kind": "reminder"},
		Delay: 24 * time.Hour, MaxAttempts: 5,
	}
	receipt, err := client.Send(ctx, "orders", reminder)
	check(err)
	fmt.Println(receipt.ID, "is due in", time.Until(receipt.Due).Round(time.Hour))
	// Output:
	// remind-42 is due in 24h0m0s
}

func ExampleClient_SendBatch() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	results, err := client.SendBatch(ctx, "orders", []bridge.NewMessage{
		{ID: "one", Payload: []byte("1"), Delay: time.Hour},
		{ID: "two", Payload: []byte("2"), At: time.Now().Add(2 * time.Hour)},
		{ID: "one", Payload: []byte("3"), Delay: time.Hour},
	})
	check(err) // an error of the whole call; each message has its own result
	for _, result := range results {
		fmt.Println(result.ID, result.Err == nil, errors.Is(result.Err, bridge.ErrDuplicate))
	}
	// Output:
	// one true false
	// two true false
	// one false true
}

func ExampleClient_Cancel() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	_, err = client.Schedule(ctx, "orders", []byte("remind"), bridge.WithID("reminder-7"), bridge.In(time.Hour))
	check(err)
	fmt.Println("cancelled:", client.Cancel(ctx, "orders", "reminder-7") == nil) // it will never be delivered

	err = client.Cancel(ctx, "orders", "reminder-7")
	fmt.Println("too late:", errors.Is(err, bridge.ErrNotScheduled))
	// Output:
	// cancelled: true
	// too late: true
}

func ExampleClient_Reschedule() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	_, err = client.Schedule(ctx, "orders", []byte("remind"), bridge.WithID("reminder-8"), bridge.In(time.Hour))
	check(err)
	due, err := client.Reschedule(ctx, "orders", "reminder-8", bridge.In(2*time.Hour))
	check(err)
	fmt.Println("now due in", time.Until(due).Round(time.Hour))
	// Output: now due in 2h0m0s
}

// Scheduling a message again is harmless while its dedup window lasts, even after it was delivered.
func ExampleDedup() {
	ctx, r, prefix, end := begin()
	defer end()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()

	for range 2 {
		receipt, err := client.Schedule(ctx, "orders", []byte("paid"), bridge.WithID("payment-1"), bridge.Dedup(24*time.Hour))
		fmt.Println(receipt.Ready, errors.Is(err, bridge.ErrDuplicate))
	}
	// Output:
	// true false
	// false true
}

func ExampleNewWorker() {
	ctx, r, prefix, end := begin()
	defer end()
	stop, done := context.WithCancel(ctx)
	defer done()

	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: "greetings", Group: "printer", Concurrency: 8,
		Handler: func(_ context.Context, m *bridge.Message) error {
			fmt.Printf("attempt %d: %s from %s\n", m.Attempt, m.Payload, m.Headers["from"])
			done()
			return nil // acknowledged
		},
	})
	check(err)
	schedule(ctx, r, prefix, "greetings", "hello", bridge.In(20*time.Millisecond), bridge.Header("from", "the example"))
	check(worker.Run(stop)) // until stop is cancelled; a clean stop leaves nothing behind
	// Output: attempt 1: hello from the example
}

// After an error the message is delivered again, with growing delays. RetryAfter sets the delay. DeadLetter gives up at
// once.
func ExampleDeadLetter() {
	ctx, r, prefix, end := begin()
	defer end()
	stop, done := context.WithCancel(ctx)
	defer done()

	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Handler: func(_ context.Context, m *bridge.Message) error {
			switch m.Attempt {
			case 1:
				return errors.New("the database is away") // by the policy of the queue
			case 2:
				fmt.Println("before:", m.Error)
				return bridge.RetryAfter(10*time.Millisecond, errors.New("rate limited"))
			default:
				fmt.Println("before:", m.Error)
				done()
				return bridge.DeadLetter(errors.New("no such customer"))
			}
		},
	})
	check(err)
	schedule(ctx, r, prefix, "orders", "order 42")
	check(worker.Run(stop))

	operator, err := admin.New(r, prefix)
	check(err)
	for letter, err := range operator.DeadLetters().List(ctx, "orders", admin.LetterFilter{Group: "billing"}) {
		check(err)
		fmt.Printf("dead after attempt %d, %s: %s\n", letter.Attempt, letter.Reason, letter.Error)
	}
	// Output:
	// before: the database is away
	// before: rate limited
	// dead after attempt 3, dead_letter: no such customer
}

// Dead letters stay until they are redriven, with another payload if need be, or purged.
func ExampleNewWorker_deadLetters() {
	ctx, r, prefix, end := begin()
	defer end()
	stop, done := context.WithCancel(ctx)
	defer done()
	operator, err := admin.New(r, prefix)
	check(err)
	letters := operator.DeadLetters()

	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Handler: func(_ context.Context, m *bridge.Message) error {
			if string(m.Payload) == "mended" {
				fmt.Println("attempt", m.Attempt, string(m.Payload))
				done()
				return nil
			}
			return bridge.DeadLetter(errors.New("cannot read this"))
		},
	})
	check(err)
	schedule(ctx, r, prefix, "orders", "broken")
	var mending sync.WaitGroup
	mending.Go(func() {
		until(func() bool {
			n, err := letters.Count(ctx, "orders", admin.LetterFilter{})
			return err == nil && n == 1
		})
		payload := []byte("mended")
		which, how := admin.LetterFilter{Reason: "dead_letter"}, admin.RedriveOptions{Payload: &payload}
		result, err := letters.RedriveMatching(ctx, "orders", which, how)
		check(err)
		fmt.Println("redriven:", result.Scheduled)
	})
	check(worker.Run(stop))
	mending.Wait()
	// Unordered output:
	// redriven: 1
	// attempt 1 mended
}

// A message that becomes ready after its expiry becomes a dead letter instead of being delivered.
func ExampleExpiresAt() {
	ctx, r, prefix, end := begin()
	defer end()
	_, err := bridge.CreateGroup(ctx, r, prefix, "offers", "mailer")
	check(err)
	expires := time.Now().Add(50 * time.Millisecond)
	schedule(ctx, r, prefix, "offers", "half price", bridge.In(100*time.Millisecond), bridge.ExpiresAt(expires))

	operator, err := admin.New(r, prefix)
	check(err)
	letters := operator.DeadLetters()
	until(func() bool {
		n, err := letters.Count(ctx, "offers", admin.LetterFilter{Reason: "expired"})
		return err == nil && n == 1
	})
	fmt.Println("expired")
	// Output: expired
}

// A queue, or one group of it, can have settings of its own. They live in Redis, so all bridges and workers follow.
func ExampleNewWorker_policy() {
	ctx, r, prefix, end := begin()
	defer end()
	visibility, attempts := 2*time.Minute, 3
	change := admin.PolicyUpdate{VisibilityTimeout: &visibility, MaxAttempts: &attempts}
	operator, err := admin.New(r, prefix)
	check(err)
	check(operator.WritePolicy(ctx, "videos", "encoder", change))

	policy, _, err := operator.ReadPolicy(ctx, "videos", "encoder")
	check(err)
	fmt.Println(policy.VisibilityTimeout, policy.MaxAttempts)
	// Output: 2m0s 3
}

// Every group of a queue gets every message, and each has its own attempts and dead letters.
func ExampleCreateGroup() {
	ctx, r, prefix, end := begin()
	defer end()
	stop, done := context.WithCancel(ctx)
	defer done()
	groups := []string{"audit", "billing"}
	for _, group := range groups { // before the first message, so that each group gets it
		_, err := bridge.CreateGroup(ctx, r, prefix, "orders", group)
		check(err)
	}
	schedule(ctx, r, prefix, "orders", "order 42")

	var mu sync.Mutex
	var got []string
	var workers sync.WaitGroup
	for _, group := range groups {
		worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: group,
			Handler: func(_ context.Context, m *bridge.Message) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, m.Group)
				if len(got) == len(groups) {
					done()
				}
				return nil
			}})
		check(err)
		workers.Go(func() { check(worker.Run(stop)) })
	}
	workers.Wait()
	slices.SortFunc(got, cmp.Compare[string])
	fmt.Println(got)
	// Output: [audit billing]
}

// A bridge may run in a process of its own or, as here, beside clients and workers. Any number of bridges share the
// queues.
func ExampleNewBridge() {
	ctx, r, prefix, end := begin()
	defer end()
	stop, done := context.WithCancel(ctx)
	defer done()

	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, Defaults: bridge.DefaultPolicy()})
	check(err)
	var running sync.WaitGroup
	running.Go(func() { check(b.Run(stop)) })

	until(func() bool { return len(b.Status().Live) == 2 }) // this one, and the one of begin
	fmt.Println("two bridges")
	done()
	running.Wait()
	// Output: two bridges
}

// schedule schedules one message.
func schedule(ctx context.Context, r *bridge.Redis, prefix, queue, payload string, options ...bridge.Option) {
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	defer client.Close()
	_, err = client.Schedule(ctx, queue, []byte(payload), options...)
	check(err)
}
