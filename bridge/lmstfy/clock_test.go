package lmstfy

import (
	"context"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// While the server that clock asks for the time hangs, clock computes the time from the server's last answer, within a
// second. That matters because on a cluster this server may not even hold the queue.
func TestTheTimeIsToldWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := &clock{client: server.Client(t)}
	if _, err := c.now(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	c.askedAt = c.askedAt.Add(-askEvery - time.Second) // the last answer is so old that the server is asked again
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 3 {
		now, err := c.now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if apart := time.Since(now).Abs(); apart > time.Minute {
			t.Errorf("the time differs by %v from this machine's", apart)
		}
	}
	server.Resume()
	c.askedAt = c.askedAt.Add(-askEvery - time.Second)
	before := c.askedAt
	if _, err := c.now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.askedAt.After(before.Add(askEvery)) {
		t.Error("a server that answers again is not asked")
	}
}
