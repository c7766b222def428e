package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Callers wait while the replies that are expected fill the room. The size of a reply tells how large the next one may
// be; small replies lower it step by step.
func TestLargeRepliesAreReceivedByFewCallers(t *testing.T) {
	t.Parallel()
	r, s := newRoom(2*maxReply), &source{}
	enter := func(ctx context.Context) func(int) { return redistest.Must(r.enter(ctx, s)) }
	first, second := enter(t.Context()), enter(t.Context())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.enter(gone, s); !errors.Is(err, context.Canceled) {
		t.Errorf("a third caller that is gone: %v", err)
	}
	third := make(chan func(int))
	go func() {
		leave, err := r.enter(context.Background(), s)
		if err != nil {
			t.Error(err)
		}
		third <- leave
	}()
	first(maxReply)
	(<-third)(maxReply)
	second(0)
	redistest.Want(t, "expected after an empty reply", s.expected, int64(maxReply/2))
	for range 20 {
		enter(t.Context())(0)
	}
	redistest.Want(t, "expected after many empty replies", s.expected, int64(minReply))
	enter(t.Context())(3 * maxReply)
	redistest.Want(t, "expected after a very large reply", s.expected, int64(maxReply))
	if !r.free.TryAcquire(2 * maxReply) {
		t.Error("the room is not empty at the end")
	}
}
