// Command embedded is a complete system in one process besides Redis: a bridge, a worker, and a client that schedules a
// message.
//
//	go run ./examples/go/embedded -in 3s
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
)

const queue, group = "greetings", "printer"

func main() {
	url := flag.String("redis", cmp.Or(os.Getenv("DUESTREAM_REDIS_URL"), "redis://127.0.0.1:6379"), "URL of Redis")
	prefix := flag.String("prefix", os.Getenv("DUESTREAM_PREFIX"), "beginning of all keys; empty: duestream")
	delay := flag.Duration("in", 3*time.Second, "when the message is due")
	once := flag.Bool("once", false, "stop after the message")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, stop, *url, *prefix, *delay, *once); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, stop func(), url, prefix string, delay time.Duration, once bool) error {
	r, err := bridge.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer r.Close()

	// Every process may run a bridge like this one. The bridges share the queues and take over from each other.
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, Defaults: bridge.DefaultPolicy()})
	if err != nil {
		return err
	}
	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: prefix, Queue: queue, Group: group,
		Handler: func(_ context.Context, m *bridge.Message) error {
			fmt.Printf("%s: %s, %s late\n", m.ID, m.Payload, m.Lateness())
			if once {
				stop()
			}
			return nil
		},
	})
	if err != nil {
		return err
	}

	if err := schedule(ctx, r, prefix, delay); err != nil {
		return err
	}
	return bridge.Run(ctx, worker.Run, b.Run) // until ctx is cancelled: the worker stops first
}

func schedule(ctx context.Context, r *bridge.Redis, prefix string, delay time.Duration) error {
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		return err
	}
	defer client.Close()
	receipt, err := client.Schedule(ctx, queue, []byte("hello from embedded"), bridge.In(delay))
	if err != nil {
		return err
	}
	fmt.Printf("%s is due at %s\n", receipt.ID, receipt.Due.Format(time.TimeOnly))
	return nil
}
