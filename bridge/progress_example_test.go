package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
)

// A handler goes on where the last attempt ended. In a test without a worker, SaveProgress only sets Progress.
func ExampleMessage_saveProgress() {
	handler := func(ctx context.Context, m *bridge.Message) error {
		for len(m.Progress) < 3 {
			step := append(bytes.Clone(m.Progress), 'x') // one more step is done
			if err := m.SaveProgress(ctx, step); err != nil {
				return err
			}
		}
		return nil
	}
	m := &bridge.Message{ID: "order-42", Attempt: 2, Progress: []byte("x")}
	fmt.Println(handler(context.Background(), m), string(m.Progress))
	// Output:
	// <nil> xxx
}

// A caller asks for the result of a message that will never have one, and learns why.
func ExampleDeadError() {
	g := newGuide()
	defer g.close()
	g.serve("charges", "billing", func(context.Context, *bridge.Message) error {
		return bridge.DeadLetter(errors.New("no such card"))
	})
	receipt, err := g.client.Schedule(g.ctx, "charges", nil, bridge.KeepResult(time.Hour))
	check(err)
	_, err = g.client.WaitFor(g.ctx, "charges", receipt.ID, "billing", bridge.AwaitDone)
	if dead, ok := errors.AsType[*bridge.DeadError](err); ok {
		fmt.Println(dead.Reason, "-", dead.Text)
	}
	// Output:
	// dead_letter - no such card
}

// Result returns what is stored, without waiting.
func ExampleMessageResult() {
	g := newGuide()
	defer g.close()
	done := make(chan struct{})
	g.serve("charges", "billing", func(_ context.Context, m *bridge.Message) error {
		defer close(done)
		return m.SetResult([]byte("paid"))
	})
	receipt, err := g.client.Schedule(g.ctx, "charges", nil, bridge.KeepResult(time.Hour))
	check(err)
	<-done
	_, err = g.client.WaitFor(g.ctx, "charges", receipt.ID, "billing", bridge.AwaitDone)
	check(err)
	result, err := g.client.Result(g.ctx, "charges", receipt.ID, "billing")
	check(err)
	fmt.Println(string(result.Value), result.Attempt)
	_, err = g.client.Result(g.ctx, "charges", receipt.ID, "audit")
	fmt.Println(errors.Is(err, bridge.ErrNoResult))
	// Output:
	// paid 1
	// true
}

// A message that is scheduled is awaited until it is ready.
func ExampleAwaited() {
	g := newGuide()
	defer g.close()
	g.serve("charges", "billing", func(context.Context, *bridge.Message) error { return bridge.Snooze(time.Hour) })
	receipt, err := g.client.Schedule(g.ctx, "charges", nil, bridge.KeepResult(time.Hour))
	check(err)
	_, err = g.client.WaitFor(g.ctx, "charges", receipt.ID, "billing", bridge.AwaitReady)
	fmt.Println(err)
	// Output:
	// <nil>
}
