package stream

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// When a worker acknowledges a message with an ordering key, it must pass the key on to the next message of that key.
// The next message is then due at once, without a bridge.
func TestAcknowledgementsPassTheKeyOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	handled, acknowledged := make(chan string, 3), make(chan string, 3)
	r.start(WorkerConfig{
		Handler: func(_ context.Context, m *Message) error { handled <- m.ID; return nil },
		Settled: func(m *Message, s Settlement) { acknowledged <- string(s) },
	})
	for _, id := range []string{"m1", "m2", "m3"} {
		r.Enqueue(lua.Item{ID: id, When: lua.After(0), Meta: `{"key":"k"}`})
	}
	for _, id := range []string{"m1", "m2", "m3"} {
		r.DrainAll()
		select {
		case got := <-handled:
			redistest.Want(t, "handled", got, id)
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not come", id)
		}
		redistest.Want(t, "settlement", <-acknowledged, "acknowledged")
	}
	redistest.Want(t, "the set of turns exists", r.Number("EXISTS", r.Keys.Turns), int64(0))
}
