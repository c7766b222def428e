package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
)

const slots = 4 // concurrent messages per partition

// runSDKWorker is a worker of level complete, built with the Go client.
func runSDKWorker() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r, err := bridge.DialWait(ctx, os.Getenv("DUESTREAM_REDIS_URL"), nil)
	if err != nil {
		return err
	}
	defer r.Close()
	var out sync.Mutex
	w, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: r, Prefix: os.Getenv("DUESTREAM_PREFIX"), Queue: os.Getenv("QUEUE"), Group: os.Getenv("GROUP"), Consumer: os.Getenv("CONSUMER"),
		Concurrency: slots, ShutdownTimeout: 8 * time.Second,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			headers := m.Headers
			if headers == nil {
				headers = map[string]string{}
			}
			payload := m.Payload
			if payload == nil {
				payload = []byte{}
			}
			text, err := json.Marshal(map[string]any{"id": m.ID, "attempt": m.Attempt, "payload": payload, "headers": headers})
			if err != nil {
				return err
			}
			out.Lock()
			_, err = os.Stdout.Write(append(text, '\n'))
			out.Unlock()
			if err != nil {
				return err
			}
			return sdkWork(ctx, m)
		},
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// sdkWork does the work that the header work of a message asks for, in the form of the contract.
func sdkWork(ctx context.Context, m *bridge.Message) error {
	var n int
	what := m.Headers["work"]
	if _, err := fmt.Sscanf(what, "slow %d", &n); err == nil {
		wait(ctx, time.Duration(n)*time.Millisecond)
		return ctx.Err()
	}
	if _, err := fmt.Sscanf(what, "fail %d", &n); err == nil && m.Attempt <= n {
		return errors.New("asked to fail")
	}
	if _, err := fmt.Sscanf(what, "retry %d", &n); err == nil && m.Attempt == 1 {
		return bridge.RetryAfter(time.Duration(n)*time.Millisecond, errors.New("asked to retry"))
	}
	if what == "dead" {
		return bridge.DeadLetter(errors.New("asked to die"))
	}
	return nil
}

// runSDKProducer is a producer built with the Go client.
func runSDKProducer() error {
	ctx := context.Background()
	r, err := bridge.DialWait(ctx, os.Getenv("DUESTREAM_REDIS_URL"), nil)
	if err != nil {
		return err
	}
	defer r.Close()
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: os.Getenv("DUESTREAM_PREFIX"),
		RetryTimeout: 15 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return eachOrder(func(o order) error {
		options := []bridge.Option{bridge.WithID(o.ID), bridge.At(time.UnixMilli(o.Due))}
		for name, value := range o.Headers {
			options = append(options, bridge.Header(name, value))
		}
		if o.MaxAttempts > 0 {
			options = append(options, bridge.MaxAttempts(o.MaxAttempts))
		}
		if o.Expires > 0 {
			options = append(options, bridge.ExpiresAt(time.UnixMilli(o.Expires)))
		}
		if o.Dedup > 0 {
			options = append(options, bridge.Dedup(time.Duration(o.Dedup)*time.Millisecond))
		}
		_, err := c.Schedule(ctx, os.Getenv("QUEUE"), o.Payload, options...)
		return err
	})
}

// eachOrder reads orders from standard input until its end, calls schedule for each, and prints an answer.
func eachOrder(schedule func(order) error) error {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return nil
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return err
		}
		reply := map[string]any{"id": o.ID, "ok": true}
		if err := schedule(o); err != nil {
			reply["ok"], reply["error"] = false, err.Error()
		}
		text, err := json.Marshal(reply)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
			return err
		}
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
