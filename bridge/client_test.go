package bridge_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Reschedule refuses every option but In and At, and does not move the message. If another option were taken for In(0),
// the message would be delivered at once.
func TestRescheduleTakesATimeOnly(t *testing.T) {
	server := redistest.Shared(t)
	prefix := server.Prefix(t)
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Schedule(t.Context(), "q", nil, bridge.WithID("m"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, option := range []bridge.Option{
		nil, bridge.WithID("other"), bridge.MaxAttempts(2), bridge.Header("a", "b"), bridge.Dedup(time.Hour),
	} {
		if _, err := client.Reschedule(t.Context(), "q", "m", option); !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("Reschedule: %v", err)
		}
	}
	places, err := redistest.Must(admin.New(r, prefix)).Locate(t.Context(), "q", "m")
	if err != nil || len(places) != 1 || time.Until(places[0].Due) < 50*time.Minute {
		t.Errorf("the message was moved: %+v, %v", places, err)
	}
}

// Schedule with options, Send, SendBatch and ScheduleBatch (the former name of SendBatch) store the same for the same
// message.
func TestScheduleIsSendWithOptions(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	prefix := server.Prefix(t)
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	m := bridge.NewMessage{Payload: []byte("p"), Headers: map[string]string{"a": "b"}, At: due, MaxAttempts: 3,
		RetryDelays: bridge.NewDelays(time.Second, time.Minute), RetryFor: time.Hour, MaxSnoozes: 4, MaxCrashes: 5,
		HandlerTimeout: time.Minute, Expires: due.Add(time.Hour), Key: "k", Replace: "replace"}
	options := []bridge.Option{bridge.Header("a", "b"), bridge.At(due), bridge.MaxAttempts(3),
		bridge.RetryDelays(time.Second, time.Minute), bridge.RetryFor(time.Hour), bridge.MaxSnoozes(4), bridge.MaxCrashes(5),
		bridge.HandlerTimeout(time.Minute), bridge.ExpiresAt(due.Add(time.Hour)), bridge.Key("k"), bridge.Replace}
	if _, err := client.Schedule(t.Context(), "q", []byte("p"), append(options, bridge.WithID("options"))...); err != nil {
		t.Fatal(err)
	}
	for id, send := range map[string]func(bridge.NewMessage) error{
		"send": func(m bridge.NewMessage) error {
			_, err := client.Send(t.Context(), "q", m)
			return err
		},
		"batch": func(m bridge.NewMessage) error {
			results, err := client.SendBatch(t.Context(), "q", []bridge.NewMessage{m})
			return errors.Join(err, results[0].Err)
		},
		"former name": func(m bridge.NewMessage) error {
			results, err := client.ScheduleBatch(t.Context(), "q", []bridge.NewMessage{m})
			return errors.Join(err, results[0].Err)
		},
	} {
		m.ID = id
		if err := send(m); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{lua.NewKeys(prefix, "q").Payload, lua.NewKeys(prefix, "q").Meta} {
			fields := r.Client.B().Hmget().Key(key).Field("options", id).Build()
			found, err := r.Client.Do(t.Context(), fields).AsStrSlice()
			if err != nil || found[0] == "" || found[0] != found[1] {
				t.Errorf("%s: with options and by %s: %q, %v", key, id, found, err)
			}
		}
	}
}

// noEnd is an Observer whose BridgeStarted returns nil instead of a function for the end of a bridge.
type noEnd struct {
	*tally
	started func() // called by BridgeStarted
}

// BridgeStarted implements bridge.Observer.
func (o noEnd) BridgeStarted(bridge.BridgeView) (ended func()) {
	o.started()
	return nil
}

// An Observer may return nil from BridgeStarted. Regression: a bridge with such an Observer panicked when it stopped.
func TestAnObserverNeedNotBeToldThatABridgeEnded(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := redistest.Must(bridge.Dial(t.Context(), server.URL()))
	defer r.Close()
	ctx, stop := context.WithCancel(t.Context())
	o := noEnd{&tally{counts: map[bridge.Part]map[bridge.Event]int{}}, stop}
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: server.Prefix(t), AnyServer: true, Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Run(ctx); err != nil {
		t.Error(err)
	}
}

// closing is a client that counts how often it is closed.
type closing struct {
	rueidis.Client
	closed int
}

func (c *closing) Close() { c.closed++ }

// Close closes the clients that a Redis has. A program that only sends messages needs no Blocking client. Regression:
// Close panicked without it.
func TestCloseClosesTheClientsThereAre(t *testing.T) {
	t.Parallel()
	one, other := &closing{}, &closing{}
	for _, r := range []*bridge.Redis{{}, {Client: one}, {Blocking: other}, {Client: one, Blocking: other}} {
		r.Close()
	}
	redistest.Want(t, "closes of Client", one.closed, 2)
	redistest.Want(t, "closes of Blocking", other.closed, 2)
}

// untouchable is a client that panics when it is used.
type untouchable struct{ rueidis.Client }

// A constructor has no context, so it does no I/O: it does not even check whether the server supports the durability.
func TestNewClientTouchesNothing(t *testing.T) {
	t.Parallel()
	for _, d := range []bridge.Durability{bridge.Accepted, bridge.Fsynced, bridge.Replicated(2)} {
		r := &bridge.Redis{Client: untouchable{}, Blocking: untouchable{}}
		client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Durability: d})
		if err != nil {
			t.Fatal(d, err)
		}
		if err := client.Close(); err != nil {
			t.Error(d, err)
		}
	}
}
