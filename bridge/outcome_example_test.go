package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
)

// A handler can be tested without Redis: give it a message, and look at the outcome of its error.
func ExampleOutcomeOf() {
	charge := func(_ context.Context, m *bridge.Message) error {
		switch {
		case len(m.Payload) == 0:
			return bridge.DeadLetter(errors.New("no card"))
		case m.Attempt == 1:
			return bridge.RetryAfter(time.Minute, errors.New("card terminal is busy"))
		}
		return nil
	}
	for _, m := range []*bridge.Message{
		{ID: "order-41", Attempt: 1},
		{ID: "order-42", Attempt: 1, Payload: []byte("4111")},
		{ID: "order-42", Attempt: 2, Payload: []byte("4111")},
	} {
		outcome := bridge.OutcomeOf(charge(context.Background(), m))
		fmt.Println(m.ID, outcome.Action, outcome.Delay, outcome.Err)
	}
	// Output:
	// order-41 dead_letter -1ns no card
	// order-42 retry 1m0s card terminal is busy
	// order-42 acknowledge -1ns <nil>
}
