package stream

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/view"
)

// lateClient gives up the first read, and makes the server execute it right before the next one.
type lateClient struct {
	rueidis.Client
	late  func()
	reads int
}

func (c *lateClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if slices.Contains(cmd.Commands(), "XREADGROUP") {
		switch c.reads++; c.reads {
		case 1:
			given, cancel := context.WithCancel(ctx)
			cancel()
			ctx = given
		case 2:
			c.late()
		}
	}
	return c.Client.Do(ctx, cmd)
}

// A server that hung executes the commands that it was sent before, in whatever order their connections come. So a read
// may be executed after the worker has given it up and has looked for its entries.
func TestWhatALateReadWasGivenIsTakenUp(t *testing.T) {
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
	delivered(t, got, 0, "m", 10*time.Second)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return r.Pending("g") == 0, "m is pending" })
}

// slowClient simulates an hour of idle time of pending entries after each fetch.
type slowClient struct {
	rueidis.Client
	r   *rig
	ids []string
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

// A worker extended entries that it was given but never saw only once, and then fetched them one by one. Of many, on a
// slow server, the last ones were reclaimed meanwhile, and handled twice.
func TestWhatIsTakenUpIsExtendedUntilItIsHeld(t *testing.T) {
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
	w.served[0].joined = true // it read them itself, and the connection broke
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return w.Stats().Acknowledged == n, "not all are done" })
	stop()
	redistest.Want(t, "Run", <-ended, nil)
}
