package stream

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
)

// narrowClient simulates a slow link: a reply with more than `most` entries, or with the entry `never`, arrives too
// late. The server has executed the call.
type narrowClient struct {
	rueidis.Client
	most  int
	never string
}

func (c *narrowClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := slices.Clone(cmd.Commands())
	reply := c.Client.Do(ctx, cmd)
	if found, err := reply.AsXRead(); words[0] == "XREADGROUP" && err == nil {
		for _, entries := range found {
			if len(entries) > c.most {
				return late(ctx)
			}
		}
	}
	return reply
}

func (c *narrowClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	reads := 0
	for _, cmd := range cmds {
		if words := cmd.Commands(); words[0] == "XRANGE" {
			reads++
			if words[2] == c.never {
				reads = c.most + 1
			}
		}
	}
	replies := c.Client.DoMulti(ctx, cmds...)
	if reads > c.most {
		for i := range replies {
			replies[i] = late(ctx)
		}
	}
	return replies
}

// late waits for the time limit of a call, and returns the reply to a call that exceeded it.
func late(ctx context.Context) rueidis.RedisResult {
	<-ctx.Done()
	return rueidis.NewErrorResult(ctx.Err())
}

// Over a slow link, a read of many large entries exceeds its time limit. The worker then fetches the entries that the
// server gave it, and a fetch of all of them takes too long as well. Regression: the worker fetched and extended all
// entries again and again. No handler began, and no bridge took the entries back.
func TestLargeEntriesOverASlowLinkAreReadInSmallerSteps(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	const n = 16
	for i := range n {
		r.Ready(fmt.Sprint("m", i))
	}
	client := &narrowClient{Client: r.Client, most: 4}
	w, _ := r.start(WorkerConfig{Client: client, Blocking: &narrowClient{Client: r.Blocking, most: 4}, Concurrency: n,
		Block: 100 * time.Millisecond, Handler: func(context.Context, *Message) error { return nil }})
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		done := w.Stats().Acknowledged
		return done == n, fmt.Sprintf("%d of %d are done", done, n)
	})
}

// If even a fetch of a single entry fails, the worker must stop extending that entry, so that a bridge takes it back.
// The other entries are handled.
func TestEntryThatCannotBeFetchedIsLeftToTheBridge(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Policy(map[string]string{"visibility_ms": "1000"})
	r.unseenEntries("me", 4)
	first := queuetest.Entries(t, r.Client, r.Prefix, r.Queue)[0].EntryID
	client := &narrowClient{Client: r.Client, most: fetchBatch, never: first}
	w, err := NewWorker(WorkerConfig{Client: client, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g",
		Consumer: "me", Concurrency: 4, Handler: func(context.Context, *Message) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	// As if this worker had read the entries, and had lost the reply. With joined set, it does not take the entries for
	// those of another process with the same consumer name.
	firstPartition(w).joined = true
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	redistest.Eventually(t, 2*time.Minute, func() (bool, string) {
		pending, err := view.ReadPending(t.Context(), r.Client, r.Keys.Stream, "g", view.PendingRange{Count: 10})
		return err == nil && len(pending) == 1 && pending[0].ID.String() == first && pending[0].Idle > 20*time.Second,
			fmt.Sprintf("%+v, %v", pending, err)
	})
	stop()
	redistest.Want(t, "Run", <-ended, nil)
}
