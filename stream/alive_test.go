package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// deafClient is a client whose calls block while the gate is closed, and ignore their contexts.
type deafClient struct {
	rueidis.Client
	gate chan struct{}
}

func (c *deafClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	<-c.gate
	return c.Client.Do(ctx, command)
}

// A worker whose settlements hung for ever used to be healthy, and was never restarted. A worker that waits for
// messages, for a handler that takes hours, or for Redis, is healthy.
func TestWorkerSaysThatItHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	handling, finish, settling, settle := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	now := time.Now()
	says := func(w *Worker, what, want string) {
		t.Helper()
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			_ = w.aliveAt(now)
			now = now.Add(HungAfter + time.Second)
			err := w.aliveAt(now)
			return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(what, ": ", err)
		})
	}
	sound := func(w *Worker, what string) {
		t.Helper()
		reads := &w.served[0].reads.n
		_ = w.aliveAt(now)
		before := reads.Load()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) { return reads.Load() > before+1, what })
		now = now.Add(HungAfter + time.Second)
		if err := w.aliveAt(now); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w, stop := r.start(WorkerConfig{Block: 100 * time.Millisecond, Settled: func(*Message, Settlement) {
		close(settling)
		<-settle
	}, Handler: func(context.Context, *Message) error {
		close(handling)
		<-finish
		return nil
	}})
	release := sync.OnceFunc(func() { close(settle) })
	t.Cleanup(release) // before the worker is stopped
	sound(w, "nothing to do")
	r.Ready("m")
	<-handling
	sound(w, "a handler that takes its time")
	close(finish)
	<-settling
	says(w, "hangs", "the settlement has not come round for 31s: the worker hangs")
	release()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return w.served[0].settle.passes.n.Load()%2 == 0, "again" })
	sound(w, "again")
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	client := &deafClient{r.Client, make(chan struct{})}
	w, stop = r.start(WorkerConfig{Client: client, Blocking: r.Blocking, Block: 100 * time.Millisecond,
		Handler: func(context.Context, *Message) error { return nil }})
	open := sync.OnceFunc(func() { close(client.gate) })
	t.Cleanup(open)
	says(w, "deaf", "the look at the registry has not come round for 31s: the worker hangs")
	open()
	sound(w, "no longer")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if err := w.aliveAt(now); err != nil {
		t.Errorf("ended: %v", err)
	}
}

// Of a worker of several queues only the loops of the first one were watched.
func TestWorkerSaysThatItHangsOnAnyOfItsQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	settling, settle := make(chan struct{}), make(chan struct{})
	cfg := WorkerConfig{
		Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix, Group: "g", Block: 100 * time.Millisecond,
		Queues:  []WorkerQueue{{Queue: r.Queue + "-first"}, {Queue: r.Queue}},
		Handler: func(context.Context, *Message) error { return nil },
		Settled: func(*Message, Settlement) {
			close(settling)
			<-settle
		},
	}
	w, err := NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		close(settle)
		cancel()
		<-done
	})
	r.Ready("m")
	<-settling
	now := time.Now()
	_ = w.aliveAt(now)
	want := r.Queue + ": the settlement has not come round for 31s"
	if err := w.aliveAt(now.Add(HungAfter + time.Second)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the worker says %v, want %q", err, want)
	}
}
