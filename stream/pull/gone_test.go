package pull

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Regression: if a queue was deleted while it had messages, a caller read it for ever, as fast as it could. The puller
// had noted new entries in the stream, and nothing took this note back.
func TestADeletedQueueIsEmpty(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Ready("a")
	r.pull(1, 10*time.Second)
	r.Ready("b", "c")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		r.Puller.mu.Lock()
		defer r.Puller.mu.Unlock()
		l := r.sources[sourceKey{r.Queue, "g"}].lines[0]
		return l.news, "the puller has not noted the new entries"
	})
	r.Do("DEL", r.Keys.Stream)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, wait := range []time.Duration{0, time.Second} {
		found, err := r.Pull(ctx, r.request(1, wait))
		if len(found) > 0 || err != nil {
			t.Errorf("after the deletion: %v, %v", idsOf(found), err)
		}
	}
	r.Ready("d")
	redistest.Want(t, "delivered after the queue was created again", fmt.Sprint(idsOf(r.pull(1, 20*time.Second))), "[d]")
}

// waitForAllConnections waits until all connections of the client lead to a restarted server. A command with a key goes
// over a random one of four connections, and a command without a key over the first.
func (r *rig) waitForAllConnections() {
	r.T.Helper()
	for range 64 {
		redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
			err := r.Client.Do(context.Background(), r.Client.B().Exists().Key(r.Keys.Due).Build()).Error()
			return err == nil, fmt.Sprint("exists: ", err)
		})
	}
}
