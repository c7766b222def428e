package bridgetest

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/clock"
	"github.com/duestream/duestream/lua"
)

// DeliverGroup is the group of the messages that Deliver passes to a handler.
const DeliverGroup = "bridgetest"

// Deliver calls the handler of a kind with one value, as a worker does with the first attempt of a message, and returns
// the outcome: the action that the worker would take. It needs no server. The message passes through the codec of the
// kind, and through the middleware of the mux. The functions in change alter the message before the call, for example
// its Attempt, ID or Headers. A panic of the handler counts as an error, as in a worker. A batch handler gets at once a
// batch of this one message.
//
// It fails the test if the mux or the value is faulty, or if the queue of the kind has no handler. If the mux does not
// know the kind and has no Mux.Otherwise, the outcome is ActionSnooze: a worker snoozes such a message first, because
// another worker of the group may know the kind. It makes a dead letter only after bridge.MaxUnknownSnoozes. The mux
// takes no further handlers afterwards.
func Deliver[T any](t TB, mux *bridge.Mux, kind bridge.Kind[T], value T,
	change ...func(*bridge.Message)) bridge.Outcome {
	t.Helper()
	handler, err := mux.Handler()
	if err != nil {
		t.Fatalf("bridgetest: deliver: %v", err)
		return bridge.Outcome{}
	}
	encoded, err := kind.Message(value)
	if err != nil {
		t.Fatalf("bridgetest: deliver: %v", err)
		return bridge.Outcome{}
	}
	now := time.Now()
	m := &bridge.Message{
		ID: cmp.Or(encoded.ID, "delivered"), Payload: encoded.Payload, Headers: encoded.Headers, Attempt: 1,
		Queue: kind.Queue, Group: DeliverGroup, Consumer: DeliverGroup, EntryID: fmt.Sprintf("%d-0", now.UnixMilli()),
		Due: now.Truncate(time.Millisecond),
	}
	if encoded.Key != "" {
		m.Extra = map[string]string{lua.FieldKey: encoded.Key}
	}
	for _, one := range change {
		one(m)
	}
	ctx, cancel := context.WithCancel(clock.With(context.Background(), hastyClock{}))
	defer cancel()
	return bridge.OutcomeOf(call(ctx, handler, m))
}

// hastyClock calls a function of AfterFunc at once. So a batch starts with its first message.
type hastyClock struct{}

// Now implements clock.Clock.
func (hastyClock) Now() time.Time { return time.Now() }

// AfterFunc implements clock.Clock.
func (hastyClock) AfterFunc(_ time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(0, f).Stop
}

// Wait implements clock.Clock.
func (hastyClock) Wait(int) {}

// WaitToRead implements clock.Clock.
func (hastyClock) WaitToRead(context.Context, string, string, time.Time) {}

// call calls a handler, and turns a panic into an error.
func call(ctx context.Context, handler bridge.Handler, m *bridge.Message) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return handler(ctx, m)
}
