package bridge_test

import (
	"errors"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// An option that says nothing about time is refused: taken as "in zero", it would deliver the message at once.
func TestRescheduleTakesATimeOnly(t *testing.T) {
	s := redistest.Shared(t)
	r, err := bridge.Dial(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	prefix := s.Prefix(t)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Schedule(t.Context(), "q", nil, bridge.WithID("m"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, option := range []bridge.Option{nil, bridge.WithID("other"), bridge.MaxAttempts(2), bridge.Header("a", "b"), bridge.Dedup(time.Hour)} {
		if _, err := client.Reschedule(t.Context(), "q", "m", option); !errors.Is(err, bridge.ErrInvalid) {
			t.Errorf("Reschedule: %v", err)
		}
	}
	places, err := admin.New(r, prefix).Locate(t.Context(), "q", "m")
	if err != nil || len(places) != 1 || time.Until(places[0].Due) < 50*time.Minute {
		t.Errorf("it was moved: %+v, %v", places, err)
	}
}
