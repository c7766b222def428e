package stream

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
)

// lateClient cancels the first read before it is sent. It calls late right before the second read: the test then makes
// the server execute the first one.
type lateClient struct {
	rueidis.Client
	late  func()
	reads int
}

func (c *lateClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if slices.Contains(cmd.Commands(), "XREADGROUP") {
		switch c.reads++; c.reads {
		case 1:
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			ctx = cancelled
		case 2:
			c.late()
		}
	}
	return c.Client.Do(ctx, cmd)
}

// A server that hung executes the commands that were sent to it meanwhile, in any order of the connections. So a read
// may be executed after the worker has given up that read and has looked for its entries. These entries must be handled
// all the same.
func TestEntriesOfALateReadAreHandled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("m")
	block := &lateClient{Client: r.Blocking, late: func() { r.Take("g", "me", 1) }}
	got := make(chan *Message, 1)
	r.start(WorkerConfig{Client: r.Client, Blocking: block, Consumer: "me", Block: 100 * time.Millisecond,
		Handler: func(_ context.Context, m *Message) error {
			got <- m
			return nil
		}})
	waitForMessage(t, got, 0, "m", 10*time.Second)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return r.Pending("g") == 0, "m is pending" })
}

// slowClient lets the pending entries become idle for an hour after each fetch, as if the fetch had been slow. Before
// each fetch it checks that the worker has extended all entries.
type slowClient struct {
	rueidis.Client
	r   *rig
	ids []string // of all pending entries
}

func (c *slowClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] == "XRANGE" {
		return c.DoMulti(ctx, cmd)[0]
	}
	return c.Client.Do(ctx, cmd)
}

func (c *slowClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if len(cmds) == 0 || cmds[0].Commands()[0] != "XRANGE" {
		return c.Client.DoMulti(ctx, cmds...)
	}
	first := cmds[0].Commands()[2]
	pending, err := view.ReadPending(ctx, c.Client, c.r.Keys.Stream, "g", view.PendingRange{From: first, Count: len(c.ids)})
	for _, one := range pending {
		if one.Idle > time.Minute {
			c.r.T.Errorf("%s is fetched while %s was not extended for %s", first, one.ID, one.Idle)
			break
		}
	}
	if err != nil {
		c.r.T.Error(err)
	}
	replies := c.Client.DoMulti(ctx, cmds...)
	c.r.Age("g", "me", c.ids...)
	return replies
}

// Regression: the server had given entries to a worker in a reply that was lost. The worker extended the entries only
// once, and then fetched one after the other. If there were many entries and the server was slow, the last ones were
// reclaimed meanwhile, and handled twice.
func TestEntriesOfALostAnswerAreExtendedUntilTheyAreHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 2*fetchBatch + 10
	r.unseenEntries("me", n)
	slow := &slowClient{Client: r.Client, r: r}
	for _, e := range queuetest.Entries(t, r.Client, r.Prefix, r.Queue) {
		slow.ids = append(slow.ids, e.EntryID)
	}
	w, err := NewWorker(WorkerConfig{Client: slow, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g",
		Consumer: "me", Concurrency: n, Handler: func(context.Context, *Message) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	firstPartition(w).joined = true // as if this worker had read the entries, and had lost the reply
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return w.Stats().Acknowledged == n, "not all are done" })
	stop()
	redistest.Want(t, "Run", <-ended, nil)
}

// unansweredClient is a Blocking client. Its first read finds no group. Before the worker gets that reply, another
// worker creates the group again. The server executes the second read, and the reply is lost.
type unansweredClient struct {
	rueidis.Client
	lose, createAgain, read func()
	reads                   int
}

func (c *unansweredClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if !slices.Contains(cmd.Commands(), "XREADGROUP") {
		return c.Client.Do(ctx, cmd)
	}
	switch c.reads++; c.reads {
	case 1:
		c.lose()
		defer c.createAgain()
	case 2:
		c.read()
		return rueidis.NewErrorResult(io.EOF)
	}
	return c.Client.Do(ctx, cmd)
}

// Regression: a group was lost, and another worker created it again. This worker then looked for entries that it had
// missed only behind the last entry that the old group had been given. But the new group is given older entries as
// well.
func TestEntriesOfAGroupThatAnotherWorkerCreatedAgainAreHandled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g", "keeper") // the group keeper does not acknowledge, so the entry stays in the stream
	r.Ready("m")
	r.Xack("g", r.Take("g", "earlier", 1)...)
	block := &unansweredClient{Client: r.Blocking,
		lose:        func() { r.Do("XGROUP", "DESTROY", r.Keys.Stream, "g") },
		createAgain: func() { r.Groups("g") },
		read:        func() { redistest.Want(t, "entries read", len(r.Take("g", "me", 1)), 1) },
	}
	got := make(chan *Message, 1)
	r.start(WorkerConfig{Client: r.Client, Blocking: block, Consumer: "me", Block: 100 * time.Millisecond,
		Handler: func(_ context.Context, m *Message) error {
			got <- m
			return nil
		}})
	waitForMessage(t, got, 0, "m", 10*time.Second)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return r.Pending("g") == 0, "m is pending" })
}
