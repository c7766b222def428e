package pull

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream"
)

// startWaiting starts a request for one message in the background, and returns when the request waits.
func (r *rig) startWaiting(request Request) (answer <-chan []Delivery) {
	r.T.Helper()
	found := make(chan []Delivery, 1)
	go func() {
		got, err := r.Pull(r.T.Context(), request)
		if err != nil {
			r.T.Error(err)
		}
		found <- got
	}()
	redistest.Eventually(r.T, 20*time.Second, func() (bool, string) {
		r.Puller.mu.Lock()
		defer r.Puller.mu.Unlock()
		s := r.sources[sourceKey{r.Queue, "g"}]
		return s != nil && len(s.lines[0].waiters) == 1, "nobody waits"
	})
	return found
}

// wantOne returns the single delivery of an answer.
func (r *rig) wantOne(answer <-chan []Delivery) Delivery {
	r.T.Helper()
	select {
	case found := <-answer:
		if len(found) == 1 {
			return found[0]
		}
		r.T.Fatalf("%d deliveries, want 1", len(found))
	case <-time.After(60 * time.Second):
		r.T.Fatal("no answer after a minute")
	}
	return Delivery{}
}

// Regression: a waiting caller read only the partitions that existed when its wait began.
func TestWhoWaitsReadsThePartitionsThatAQueueGets(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	answer := r.startWaiting(r.request(1, MaxWait))
	if _, err := stream.Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	r.Part(3).Ready("m")
	found := r.wantOne(answer)
	redistest.Want(t, "delivered", fmt.Sprint(found.ID, " in partition ", found.Partition), "m in partition 3")
}

// Regression: a waiting caller got its message by the settings at the beginning of the wait. If the visibility timeout
// was shortened during the wait, the bridge reclaimed the message at once, while the caller worked on it.
func TestWhoWaitsIsGivenMessagesByTheSettingsOfNow(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "3600000"})
	request := r.request(1, MaxWait)
	request.Within = 20 * time.Second
	answer := r.startWaiting(request)
	r.Policy(map[string]string{"visibility_ms": "30000"})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		now := r.known(r.Queue, "g").visibility()
		return now == 30*time.Second, fmt.Sprint("the visibility timeout is ", now)
	})
	r.Ready("a")
	redistest.Want(t, "time to settle the delivery", r.wantOne(answer).Within, 20*time.Second)
	reply := r.Do("XPENDING", r.Keys.Stream, "g", "-", "+", "1")
	entry := queuetest.Array(t, queuetest.Array(t, reply)[0])
	// The entry starts with 10 s of idle time, so that 20 of the 30 s remain.
	if idle, err := entry[2].AsInt64(); err != nil || idle < 10_000 || idle >= 30_000 {
		t.Errorf("idle time %d ms, %v: want at least 10 s, and less than the visibility timeout", idle, err)
	}
}
