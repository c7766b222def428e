package pull

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream"
)

// waits starts a request for one message, and returns as soon as the request waits.
func (r *rig) waits(request Request) (answer <-chan []Delivery) {
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

func (r *rig) only(answer <-chan []Delivery) Delivery {
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

// Until the end of its wait, a waiting caller used to read only the partitions that the queue had at the beginning.
func TestWhoWaitsReadsThePartitionsThatAQueueGets(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	answer := r.waits(r.request(1, MaxWait))
	if _, err := stream.Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4, nil); err != nil {
		t.Fatal(err)
	}
	r.Part(3).Ready("in a new partition")
	found := r.only(answer)
	redistest.Want(t, "given", fmt.Sprint(found.ID, " of ", found.Partition), "in a new partition of 3")
}

// A waiting caller used to get its message by the settings of the moment when the wait began. After the visibility
// timeout was made shorter, the bridge took the message back at once, while the caller worked on it.
func TestWhoWaitsIsGivenMessagesByTheSettingsOfNow(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "3600000"})
	request := r.request(1, MaxWait)
	request.Within = 20 * time.Second
	answer := r.waits(request)
	r.Policy(map[string]string{"visibility_ms": "30000"})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		now := r.known(r.Queue, "g").visibility()
		return now == 30*time.Second, fmt.Sprint("the visibility timeout is ", now)
	})
	r.Ready("a")
	redistest.Want(t, "time", r.only(answer).Within, 20*time.Second)
	reply := r.Do("XPENDING", r.Keys.Stream, "g", "-", "+", "1")
	entry := queuetest.Array(t, queuetest.Array(t, reply)[0])
	if idle, err := entry[2].AsInt64(); err != nil || idle < 10_000 || idle >= 30_000 {
		t.Errorf("idle for %d ms at the start, %v: want 10 s, and less than the visibility timeout", idle, err)
	}
}
