// Command worker prints the messages of a queue. Any number may run with the same group: each message goes to one of
// them.
//
//	go run ./examples/go/worker -queue emails -group mailer -fail 10
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/duestream/duestream/bridge"
)

func main() {
	url := flag.String("redis", cmp.Or(os.Getenv("DUESTREAM_REDIS_URL"), "redis://127.0.0.1:6379"), "URL of Redis")
	prefix := flag.String("prefix", os.Getenv("DUESTREAM_PREFIX"), "beginning of all keys; empty: duestream")
	queue := flag.String("queue", "emails", "queue to read")
	group := flag.String("group", "mailer", "consumer group to read as")
	concurrency := flag.Int("concurrency", 16, "messages handled at the same time")
	percent := flag.Int("fail", 0, "share of first attempts that fail, in percent")
	flag.Parse()

	// The first signal starts a clean stop: handlers finish, and nothing stays pending.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := bridge.WorkerConfig{
		Prefix: *prefix, Queue: *queue, Group: *group, Concurrency: *concurrency, Handler: handler(*percent),
	}
	if err := run(ctx, *url, cfg); err != nil {
		log.Fatal(err)
	}
}

func handler(failing int) bridge.Handler {
	return func(_ context.Context, m *bridge.Message) error {
		if m.Attempt == 1 && rand.IntN(100) < failing {
			return errors.New("failing once, as asked") // delivered again, as the policy of the queue says
		}
		fmt.Printf("%s %d %q, %s late\n", m.ID, m.Attempt, m.Payload, m.Lateness())
		return nil // acknowledged
	}
}

func run(ctx context.Context, url string, cfg bridge.WorkerConfig) error {
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	r, err := bridge.DialWait(ctx, url, cfg.Logger)
	if err != nil {
		return err
	}
	defer r.Close()
	cfg.Redis = r
	worker, err := bridge.NewWorker(cfg)
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
