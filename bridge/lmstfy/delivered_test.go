package lmstfy_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// settles reports whether a command calls a script with the key of a stream, as settling a delivery does.
func settles(words []string, stream string) bool {
	return strings.HasPrefix(words[0], "EVAL") && slices.Contains(words, stream)
}

// After an acknowledgement has failed, the gateway still watches the job, and takes it back after its ttr. Regression:
// the gateway forgot the job, so a bridge took it back and counted a try. A job with one try was then dead, although
// its tries were frozen.
func TestAJobIsWatchedAfterItsAcknowledgementFailed(t *testing.T) {
	t.Parallel()
	r, f := newFaultyRig(t)
	id := r.publish("q", "x", 60, 1, 0)
	if job, err := r.ConsumeWithFreezeTries("q", 3, 10); err != nil || job == nil {
		t.Fatal(job, err)
	}
	stream := lua.NewKeys(r.prefix, "ns:q").Stream
	f.set(func(ctx context.Context, words []string) error { // Redis hangs at the acknowledgement
		if settles(words, stream) {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	ctx, hangUp := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer hangUp()
	req, err := http.NewRequestWithContext(ctx, "DELETE", r.base+"/api/ns/q/job/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Token", r.token)
	if res, err := r.transport.RoundTrip(req); err == nil {
		t.Error("acknowledged", res.Status, res.Body.Close())
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.answering.Load()
		return n == 0, fmt.Sprint(n, " requests are being answered")
	})
	f.set(nil)
	job, failed := r.ConsumeWithFreezeTries("q", 60, 30)
	if failed != nil || job == nil || job.ID != id || job.RemainTries != 1 {
		t.Fatalf("after its ttr: %+v %v", job, failed)
	}
	r.ok(r.Ack("q", id))
	r.dead("q", 0)
}

// If the gateway could not take a job back after its ttr, it tries again a second later. Regression: the gateway forgot
// the job, so a bridge took it back and counted a try, although the job's tries were frozen.
func TestAJobIsTakenBackAgainAfterThatFailed(t *testing.T) {
	t.Parallel()
	r, f := newFaultyRig(t)
	id := r.publish("q", "x", 60, 1, 0)
	stream, refused := lua.NewKeys(r.prefix, "ns:q").Stream, atomic.Int64{}
	if job, err := r.ConsumeWithFreezeTries("q", 1, 10); err != nil || job == nil {
		t.Fatal(job, err)
	}
	f.set(func(_ context.Context, words []string) error {
		if settles(words, stream) {
			refused.Add(1)
			return context.DeadlineExceeded
		}
		return nil
	})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return refused.Load() > 0, "the gateway has not tried to take the job back"
	})
	f.set(nil)
	job, failed := r.ConsumeWithFreezeTries("q", 60, 30)
	if failed != nil || job == nil || job.ID != id || job.RemainTries != 1 {
		t.Fatalf("after its ttr: %+v %v", job, failed)
	}
	r.ok(r.Ack("q", id))
	r.dead("q", 0)
}

// While Redis answers no command for other queues, a job comes back after its ttr, with its frozen tries. Regression:
// one loop took jobs back one after the other, looked for jobs of other gateways, and read all dead letters. While it
// waited for one queue, bridges took back the jobs of other queues, and counted a try.
func TestAJobComesBackWhileOtherQueuesHang(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]struct {
		command string
		key     func(lua.Keys) string
	}{
		"the look for jobs of other gateways": {"XPENDING", func(k lua.Keys) string { return k.Stream }},
		"jobs that are taken back":            {"EVAL", func(k lua.Keys) string { return k.Stream }},
		"the look for dead letters":           {"XREVRANGE", func(k lua.Keys) string { return k.Dead }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, f := newFaultyRig(t)
			client, err := bridge.NewClient(bridge.ClientConfig{Redis: r.r, Prefix: r.prefix})
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			hung, hangs, over := atomic.Int64{}, atomic.Bool{}, make(chan struct{}) // hung: commands that hang or hung
			for i := range 4 {
				queue := fmt.Sprint("ns:other-", i)
				if err := lmstfy.EnsureQueue(t.Context(), r.op, queue); err != nil {
					t.Fatal(err)
				}
				if _, err := client.Schedule(t.Context(), queue, nil, bridge.MaxAttempts(1)); err != nil {
					t.Fatal(err)
				}
				keys = append(keys, hang.key(lua.NewKeys(r.prefix, queue)))
			}
			f.set(func(ctx context.Context, words []string) error {
				is := func(key string) bool { return slices.Contains(words, key) }
				if !hangs.Load() || !strings.HasPrefix(words[0], hang.command) || !slices.ContainsFunc(keys, is) {
					return nil
				}
				hung.Add(1)
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-over:
					return nil
				}
			})
			defer close(over)
			hangs.Store(hang.command != "EVAL") // this hang begins only after the jobs were delivered
			for i := range 4 {
				if hang.command == "EVAL" { // deliver a job of each queue, so that there is one to take back
					r.get(fmt.Sprint("other-", i), 1)
				}
			}
			hangs.Store(true)
			r.none("q") // starts the loops
			redistest.Eventually(t, 20*time.Second, func() (bool, string) { return hung.Load() > 0, "nothing hangs" })
			id := r.publish("q", "x", 60, 1, 0)
			for _, ttr := range []int{1, 60} { // the second delivery is after the ttr of the first
				job, err := r.ConsumeWithFreezeTries("q", uint32(ttr), 30)
				if err != nil || job == nil || job.ID != id || job.RemainTries != 1 {
					t.Fatalf("with a ttr of %d s: %+v %v", ttr, job, err)
				}
			}
			r.ok(r.Ack("q", id))
			r.dead("q", 0)
		})
	}
}
