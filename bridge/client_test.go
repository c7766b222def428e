package bridge_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
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
	places, err := admin.New(r, prefix).Locate(t.Context(), "q", "m")
	if err != nil || len(places) != 1 || time.Until(places[0].Due) < 50*time.Minute {
		t.Errorf("it was moved: %+v, %v", places, err)
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
