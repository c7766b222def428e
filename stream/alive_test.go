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

// Regression: a worker whose settlements hung for ever counted as healthy, and was never restarted. A worker must still
// count as healthy while it waits for messages or for a slow handler, and after it has ended.
func TestWorkerSaysThatItHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	handling, finish, settling, settle := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	now := time.Now() // the time that the worker is told: the test moves it on by more than HungAfter
	expectHung := func(w *Worker, what, want string) {
		t.Helper()
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			_ = w.aliveAt(now)
			now = now.Add(HungAfter + time.Second)
			err := w.aliveAt(now)
			return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(what, ": ", err)
		})
	}
	expectHealthy := func(w *Worker, what string) {
		t.Helper()
		reads := &firstPartition(w).reads.count
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
	t.Cleanup(release) // runs before the cleanup that stops the worker: a worker that hangs cannot stop
	expectHealthy(w, "nothing to do")
	r.Ready("m")
	<-handling
	expectHealthy(w, "a handler that takes its time")
	close(finish)
	<-settling
	expectHung(w, "hangs", "the settlement has not come round for 31s: the worker hangs")
	release()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		isOutsideSettlement := firstPartition(w).settles.count.Load()%2 == 0
		return isOutsideSettlement, "the settlement does not end"
	})
	expectHealthy(w, "after the settlement")
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	client := &deafClient{r.Client, make(chan struct{})}
	w, stop = r.start(WorkerConfig{Client: client, Blocking: r.Blocking, Block: 100 * time.Millisecond,
		Handler: func(context.Context, *Message) error { return nil }})
	open := sync.OnceFunc(func() { close(client.gate) })
	t.Cleanup(open)
	expectHung(w, "deaf", "the look at the registry has not come round for 31s: the worker hangs")
	open()
	expectHealthy(w, "no longer deaf")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if err := w.aliveAt(now); err != nil {
		t.Errorf("ended: %v", err)
	}
}

// Regression: if a worker had several queues, only the loops of the first queue were watched.
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
