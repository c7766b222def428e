// Command producer schedules one message.
//
//	go run ./examples/go/producer -queue emails -id order-42 -in 15m 'close the order'
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/duestream/duestream/bridge"
)

func main() {
	url := flag.String("redis", cmp.Or(os.Getenv("DUESTREAM_REDIS_URL"), "redis://127.0.0.1:6379"), "URL of Redis")
	prefix := flag.String("prefix", os.Getenv("DUESTREAM_PREFIX"), "beginning of all keys; empty: duestream")
	queue := flag.String("queue", "emails", "queue to schedule into")
	id := flag.String("id", "", "name of the message; empty: a new one is made")
	delay := flag.Duration("in", 0, "how long from now it is due")
	flag.Parse()
	if err := run(*url, *prefix, *queue, *id, *delay, flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

func run(url, prefix, queue, id string, delay time.Duration, payload string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
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

	options := []bridge.Option{bridge.In(delay), bridge.Header("source", "examples/go/producer")}
	if id != "" {
		options = append(options, bridge.WithID(id))
	}
	receipt, err := client.Schedule(ctx, queue, []byte(payload), options...)
	switch {
	case errors.Is(err, bridge.ErrDuplicate):
		return fmt.Errorf("%s is scheduled already, and was left as it is", id)
	case err != nil:
		return err // no message was accepted, unless it is bridge.ErrUncertain
	}
	fmt.Printf("%s is due at %s\n", receipt.ID, receipt.Due.Format(time.RFC3339Nano))
	return nil
}
