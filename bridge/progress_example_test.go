package bridge_test

import (
	"bytes"
	"context"
	"fmt"

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
