package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

const (
	demoQueue = "demo"
	demoGroup = "demo-workers"
)

// demoDelays are the delays of the messages, in rotation.
var demoDelays = []time.Duration{0, time.Second, 2 * time.Second, 500 * time.Millisecond, 3 * time.Second, 0,
	5 * time.Second, 1500 * time.Millisecond}

const (
	goodMessage = `{"kind":"good"}`
	badMessage  = `{"kind":"bad"}` // fails on every attempt
)

// demo is a producer and two workers that print what happens.
type demo struct {
	out    io.Writer
	quiet  bool
	prefix string
	redis  *bridge.Redis
	log    *slog.Logger

	mu                             sync.Mutex
	scheduled, done, retried, dead int
}

// parts returns the functions to run: two workers and the producer.
func (d *demo) parts() []func(context.Context) error {
	steady := func(int) bool { return false }
	shaky := func(n int) bool { return n%4 == 2 } // it gets half of all messages, so an eighth of all messages fail once
	return []func(context.Context) error{d.worker("worker-1", steady), d.worker("worker-2", shaky), d.produce}
}

// produce schedules one message per second, the first at once. Every twentieth message always fails.
func (d *demo) produce(ctx context.Context) error {
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: d.redis, Prefix: d.prefix, Logger: d.log})
	if err != nil {
		return err
	}
	defer client.Close()
	every := time.NewTicker(time.Second)
	defer every.Stop()
	run := time.Now().Format("150405") // so that IDs differ from those of an earlier run, in a kept data directory
	for n := 1; ; n++ {
		payload := goodMessage
		if n%20 == 4 {
			payload = badMessage
		}
		id := fmt.Sprintf("demo-%s-%d", run, n)
		_, err := client.Schedule(ctx, demoQueue, []byte(payload), bridge.WithID(id),
			bridge.In(demoDelays[(n-1)%len(demoDelays)]))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		d.count(&d.scheduled)
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
	}
}

// worker returns a worker. fails gets the running number of a message, and says whether its first attempt fails.
func (d *demo) worker(name string, fails func(n int) bool) func(context.Context) error {
	var mu sync.Mutex
	seen := 0
	handle := func(_ context.Context, m *bridge.Message) error {
		mu.Lock()
		seen++
		n := seen
		mu.Unlock()
		var err error
		switch {
		case string(m.Payload) == badMessage:
			err = errors.New("this message always fails")
		case m.Attempt == 1 && fails(n):
			err = errors.New("the worker had a bad moment")
		}
		return d.outcome(name, m, err)
	}
	return func(ctx context.Context) error {
		w, err := bridge.NewWorker(bridge.WorkerConfig{
			Redis: d.redis, Prefix: d.prefix, Queue: demoQueue, Group: demoGroup, Consumer: name,
			Handler: handle, Concurrency: 1, ShutdownTimeout: 2 * time.Second, Logger: d.log,
		})
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}
}

// outcome prints the result of a delivery, and returns the error that the handler must return.
func (d *demo) outcome(worker string, m *bridge.Message, err error) error {
	switch maxAttempts := cmp.Or(m.MaxAttempts, devPolicy.MaxAttempts); {
	case err == nil:
		d.count(&d.done)
		d.line(worker, m, "ok")
	case m.Attempt >= maxAttempts:
		d.count(&d.dead)
		d.line(worker, m, "dead letter")
	default:
		d.count(&d.retried)
		delay := devPolicy.Delay(m.Attempt).Round(time.Millisecond) // computed here so that it can be printed
		d.line(worker, m, "retry in "+delay.String())
		err = bridge.RetryAfter(delay, err)
	}
	return err
}

func (d *demo) line(worker string, m *bridge.Message, outcome string) {
	if d.quiet {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%s  %-14s  attempt %d  %4s late  %s  %s\n", time.Now().Format("15:04:05.000"),
		human.OneLine(m.ID, 40), m.Attempt,
		m.Lateness(), worker, outcome)
}

func (d *demo) count(n *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*n++
}

func (d *demo) summary() {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "\nStopped: %d scheduled, %d done, %d retried, %d dead.\n", d.scheduled, d.done, d.retried, d.dead)
}
