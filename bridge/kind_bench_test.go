package bridge_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/duestream/duestream/bridge"
)

// BenchmarkHandler compares the handler of a mux with a handler that decodes the same message by itself, without a
// server. `duestream bench deliver` compares them with one.
func BenchmarkHandler(b *testing.B) {
	m, err := closeOrder.Message(order{ID: 42, Total: "9.90"})
	check(err)
	delivered := &bridge.Message{ID: "m-1", Queue: "orders", Payload: m.Payload, Headers: m.Headers, Attempt: 1}
	mux := &bridge.Mux{}
	closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
	typed, err := mux.Handler()
	check(err)
	byHand := func(_ context.Context, m *bridge.Message) error {
		var o order
		return json.Unmarshal(m.Payload, &o)
	}
	for name, handle := range map[string]bridge.Handler{"typed": typed, "by hand": byHand} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				check(handle(b.Context(), delivered))
			}
		})
	}
}
