package lmstfy

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// While the server that is asked for the time hangs, clock answers within a second from its last answer. On a cluster
// that server may not even hold the queue.
func TestTheTimeIsToldWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := &clock{client: server.Client(t)}
	if _, err := c.now(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	c.asked = c.asked.Add(-askEvery - time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 3 {
		now, err := c.now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if apart := time.Since(now).Abs(); apart > time.Minute {
			t.Errorf("the time is %v apart", apart)
		}
	}
	server.Resume()
	c.asked = c.asked.Add(-askEvery - time.Second)
	before := c.asked
	if _, err := c.now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.asked.After(before.Add(askEvery)) {
		t.Error("a server that answers again is not asked")
	}
}
