package bench

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"

	"github.com/duestream/duestream/bridge"
)

// order is the payload of the typed path.
type order struct {
	ID       int      `json:"id"`
	Customer string   `json:"customer"`
	Lines    []string `json:"lines"`
	Note     string   `json:"note"`
}

// typed measures delivery to a kind of a mux, in turns with a handler that does the same work by hand.
func (r *rig) typed(ctx context.Context) ([]*series, error) {
	kind := bridge.Kind[order]{Name: "order", Queue: r.Queue}
	value := order{ID: 42, Customer: "north", Lines: []string{"a book", "a pen"}}
	m, err := kind.Message(value)
	if err != nil {
		return nil, err
	}
	value.Note = strings.Repeat("n", max(0, len(r.payload)-len(m.Payload)))
	if m, err = kind.Message(value); err != nil {
		return nil, err
	}
	former := r.payload
	r.payload, r.headers = m.Payload, m.Headers
	defer func() { r.payload, r.headers = former, nil }()

	rate, cpu := higher("deliver_typed", "msg/s"), lower("deliver_typed_server", "µs/msg")
	allocations := lower("deliver_typed_allocations", "1/msg")
	floor := func(ctx context.Context) (float64, error) {
		var handled atomic.Int64
		byHand := func(_ context.Context, m *bridge.Message) error {
			var o order
			if err := json.Unmarshal(m.Payload, &o); err != nil {
				return bridge.DeadLetter(err)
			}
			handled.Add(1)
			return nil
		}
		return r.deliverTo(ctx, []bridge.WorkerConfig{{Group: group, Handler: byHand}}, &handled,
			messageCosts{&cpu.floor, &allocations.floor})
	}
	product := func(ctx context.Context) (float64, error) {
		var handled atomic.Int64
		mux := &bridge.Mux{}
		kind.Handle(mux, func(context.Context, *bridge.Delivery[order]) error {
			handled.Add(1)
			return nil
		})
		return r.deliverTo(ctx, []bridge.WorkerConfig{{Group: group, Mux: mux}}, &handled,
			messageCosts{&cpu.values, &allocations.values})
	}
	return []*series{rate, cpu, allocations}, r.turns(ctx, rate, floor, product)
}
