package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestCleanStopLeavesNothingPendingAndBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started := make(chan struct{}, 8)
	w, stop := r.start(WorkerConfig{Concurrency: 4, ShutdownTimeout: -1, Handler: func(ctx context.Context, m *Message) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	r.Ready("a", "b", "c", "d", "e", "f")
	for range 4 {
		<-started
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "released", w.Stats().Released, uint64(4))
	meta, _ := r.Client.Do(t.Context(), r.Client.B().Hgetall().Key(r.Keys.Meta).Build()).AsStrMap()
	redistest.Want(t, "members to deliver again", len(meta), 4)
	for member, text := range meta {
		if e, ok := lua.DecodeMeta(member, text); !ok || e.Attempt != 1 {
			t.Errorf("%s: attempt %d", e.ID, e.Attempt)
		}
	}
	consumers, err := r.Client.Do(t.Context(), r.Client.B().XinfoConsumers().Key(r.Keys.Stream).Group("g").Build()).ToArray()
	if err != nil || len(consumers) != 0 {
		t.Errorf("consumers left: %v, %v", consumers, err)
	}
}

func TestHandlersMayFinishDuringShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started, finish := make(chan struct{}), make(chan struct{})
	w, stop := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		close(started)
		<-finish
		return ctx.Err()
	}})
	r.Ready("m")
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(finish)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "acknowledged", w.Stats().Acknowledged, uint64(1))
}

func TestHandlerThatIgnoresItsContextKeepsItsEntry(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started, release := make(chan struct{}), make(chan struct{})
	var log strings.Builder
	_, stop := r.start(WorkerConfig{
		ShutdownTimeout: -1, CancelGrace: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Handler: func(context.Context, *Message) error {
			close(started)
			<-release
			return nil
		},
	})
	r.Ready("m")
	<-started
	err := stop()
	close(release)
	if !errors.Is(err, ErrAbandoned) {
		t.Errorf("Run: %v", err)
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(1))
	if !strings.Contains(log.String(), "did not return") {
		t.Errorf("log does not say so: %s", log.String())
	}
}

// unseenEntries has a consumer be given entries whose reply nobody reads.
func (r *rig) unseenEntries(consumer string, n int) {
	r.T.Helper()
	if _, err := EnsureGroup(r.T.Context(), r.Client, r.Prefix, r.Queue, "g"); err != nil {
		r.T.Fatal(err)
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	r.Ready(ids...)
	read := r.Client.B().Xreadgroup().Group("g", consumer).Count(int64(n)).Streams().Key(r.Keys.Stream).Id(">").Build()
	if err := r.Client.Do(r.T.Context(), read).Error(); err != nil {
		r.T.Fatal(err)
	}
	redistest.Want(r.T, "pending", r.Pending("g"), int64(n))
}

func TestStoppedWorkerReleasesWhatItNeverSaw(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 2*settleBatch + 50
	r.unseenEntries("me", n)
	w, err := NewWorker(WorkerConfig{
		Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g", Consumer: "me",
		Handler: func(context.Context, *Message) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.served[0].leave()
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "released", w.Stats().Released, uint64(n))
	meta, _ := r.Client.Do(t.Context(), r.Client.B().Hgetall().Key(r.Keys.Meta).Build()).AsStrMap()
	redistest.Want(t, "members to deliver again", len(meta), n)
	for member, text := range meta {
		if e, ok := lua.DecodeMeta(member, text); !ok || e.Attempt != 1 {
			t.Fatalf("%s: attempt %d", e.ID, e.Attempt)
		}
	}
}

func TestWorkerTakesUpWhatItsNameStillHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 2*extendBatch + 50
	r.unseenEntries("me", n)
	w, _ := r.start(WorkerConfig{Consumer: "me", Concurrency: 2 * n, Handler: func(_ context.Context, m *Message) error {
		if m.Attempt != 1 {
			t.Errorf("%s: attempt %d", m.ID, m.Attempt)
		}
		return nil
	}})
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		s := w.Stats()
		return s.Acknowledged == n && r.Pending("g") == 0, fmt.Sprintf("%+v", s)
	})
	redistest.Want(t, "delivered", w.Stats().Delivered, uint64(n))
}
