package stream

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// lateClient gives the first read up, and has the server execute it right before the next one.
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

// A server that hung executes what it was sent before, in whatever order the connections come. So a read may be executed when the
// worker has given it up, and has looked for what it was given already.
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
