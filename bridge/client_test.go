package bridge_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Reschedule refuses an option other than In and At. Read as In(0), it would deliver the message at once.
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
		t.Errorf("it was moved: %+v, %v", places, err)
	}
}

// Schedule with options and Send of the same message store the same, and so do both names of the batch.
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
