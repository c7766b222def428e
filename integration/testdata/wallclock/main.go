// All of duestream runs in one process whose wall clock jumps back and forth while its monotonic clock runs normally.
// This builds only with a copy of package time that has ShiftWall. TestClientClockHasNoEffect makes that copy, runs
// this program and reads its output lines:
//
//	sent ID DUE          what the receipt says, Unix ms
//	delivered ID AT DUE ATTEMPT
//	lost N               deliveries that the worker was told it had lost
package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

const messages = 120

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, prefix, queue string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := bridge.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer r.Close()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		return err
	}
	defer client.Close()
	policy := bridge.Policy{VisibilityTimeout: time.Second, MaxAttempts: 10, RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond}
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, Defaults: policy})
	if err != nil {
		return err
	}
	if _, err := bridge.CreateGroup(ctx, r, prefix, queue, "g"); err != nil { // so that it gets everything
		return err
	}
	var delivered atomic.Int32
	w, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: queue, Group: "g", Concurrency: messages,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			fmt.Println("delivered", m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli(), m.Attempt)
			if m.ID[0] == 's' { // slow: it takes twice its visibility timeout
				wait(ctx, 2500*time.Millisecond)
			}
			delivered.Add(1)
			return nil
		},
	})
	if err != nil {
		return err
	}
	serve, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- b.Run(serve) }()
	c := r.Client
	for ctx.Err() == nil { // a worker that starts before the policy is written uses the default for seconds
		if n, _ := c.Do(ctx, c.B().Exists().Key(prefix+":defaults").Build()).AsInt64(); n == 1 {
			break
		}
		wait(ctx, 10*time.Millisecond)
	}
	go func() { ended <- w.Run(serve) }()

	steps := []time.Duration{0, 3 * time.Hour, -6 * time.Hour, 30 * 24 * time.Hour, time.Hour, -30 * 24 * time.Hour}
	for i := range messages {
		time.ShiftWall(int64(steps[i/5%len(steps)] / time.Second))
		id := fmt.Sprint("message-", i)
		if i%10 == 0 {
			id = fmt.Sprint("slow-", i)
		}
		receipt, err := client.Schedule(ctx, queue, []byte(id), bridge.WithID(id), bridge.In(time.Duration(i%40)*25*time.Millisecond))
		if err != nil {
			return err
		}
		fmt.Println("sent", id, receipt.Due.UnixMilli())
		wait(ctx, 30*time.Millisecond)
	}
	for i := 0; delivered.Load() < messages && ctx.Err() == nil; i++ {
		time.ShiftWall(int64(steps[i/5%len(steps)] / time.Second))
		wait(ctx, 50*time.Millisecond)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			return err
		}
	}
	fmt.Println("lost", w.Stats().Lost)
	return ctx.Err()
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
