package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// What a handler stored reaches the next attempt after each way in which a delivery may fail, and ends with the
// acknowledgement. A handler that stores nothing keeps the progress of the attempt before. Afterwards no field of the
// hash is left.
func TestProgressOutlivesEachOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{policy.SettingMaxAttempts: "10"})
	told, step := make(chan string, 10), 0
	w, _ := r.start(WorkerConfig{
		Handler: func(ctx context.Context, m *Message) error {
			told <- fmt.Sprintf("%d %q", m.Attempt, m.Progress)
			outcomes := []error{RetryAfter(0, errors.New("no")), Snooze(0), Release(nil),
				RetryAfter(0, errors.New("again")), nil}
			outcome := outcomes[step]
			step++
			if step < 4 {
				for _, cursor := range []string{"unfinished", fmt.Sprint("step ", step)} {
					if err := m.SaveProgress(ctx, []byte(cursor)); err != nil {
						t.Error(err)
					}
				}
				redistest.Want(t, "progress after it was stored", string(m.Progress), fmt.Sprint("step ", step))
			}
			return outcome
		},
	})
	r.Ready("m")
	for _, want := range []string{`1 ""`, `2 "step 1"`, `2 "step 2"`, `2 "step 3"`, `3 "step 3"`} {
		redistest.Want(t, "attempt and progress", <-told, want)
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			r.DrainAll()
			return r.Number("ZCARD", r.Keys.Due) == 0 && (len(told) > 0 || w.Stats().Acknowledged == 1), "no next delivery"
		})
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.Exists(r.Keys.Progress, r.Keys.Due, r.Keys.Payload, r.Keys.Meta) == 0, "something is left"
	})
}

// A worker that neither stores nor has stored progress sends nothing for it.
func TestDeliveryWithoutProgressCostsNoCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	w, stop := r.start(WorkerConfig{Handler: func(context.Context, *Message) error { return nil }})
	monitor := s.Monitor(t) // of what clients send, without what scripts call
	r.Ready("m")
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1, "not acknowledged"
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "HDELs", monitor.Commands()["hdel"]+monitor.Commands()["HDEL"], 0)
}

// A handler that lost its delivery is told so, and stops.
func TestProgressOfALostDelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	told, goOn := make(chan error, 3), make(chan struct{})
	r.start(WorkerConfig{
		Handler: func(ctx context.Context, m *Message) error {
			told <- nil
			<-goOn
			told <- m.SaveProgress(ctx, []byte("x"))
			<-ctx.Done()
			told <- context.Cause(ctx)
			return nil
		},
	})
	r.Ready("m")
	<-told
	r.Do("XACK", r.Keys.Stream, "g", queuetest.Entries(t, r.Client, r.Prefix, r.Queue)[0].EntryID)
	close(goOn)
	if err := <-told; !errors.Is(err, ErrLost) {
		t.Errorf("SaveProgress: %v", err)
	}
	if cause := <-told; !errors.Is(cause, ErrLost) {
		t.Errorf("cause: %v", cause)
	}
	redistest.Want(t, "stored", r.Exists(r.Keys.Progress), int64(0))
}

// A handler whose worker stops may still store its progress before it returns, with its own context.
func TestProgressWhileTheWorkerStops(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	begun := make(chan struct{})
	_, stop := r.start(WorkerConfig{
		ShutdownTimeout: -1,
		Handler: func(ctx context.Context, m *Message) error {
			close(begun)
			<-ctx.Done()
			if err := m.SaveProgress(ctx, []byte("page 7")); err != nil {
				t.Error(err)
			}
			return ctx.Err()
		},
	})
	r.Ready("m")
	<-begun
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.DrainAll()
	next := r.Next("g")
	redistest.Want(t, "progress", string(next[0].TakeProgress()), "page 7")
	redistest.Want(t, "attempt", next[0].Attempt, 1)
}

// A handler may store its progress after its time is over, before it returns, with its own context.
func TestProgressAfterTheTimeLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"retry_delays_ms": "50000", "handler_timeout_ms": "150"})
	settled := make(chan Settlement, 1)
	r.start(WorkerConfig{
		AbandonAfter: time.Hour, Settled: func(_ *Message, s Settlement) { settled <- s },
		Handler: func(ctx context.Context, m *Message) error {
			<-ctx.Done()
			if err := m.SaveProgress(ctx, []byte("page 7")); err != nil {
				t.Error(err)
			}
			return ctx.Err()
		},
	})
	r.Ready("m")
	redistest.Want(t, "settlement", <-settled, Retried)
	meta := fmt.Sprint(r.Texts("HVALS", r.Keys.Meta))
	redistest.Want(t, "progress of the retry in "+meta, strings.Contains(meta, `"progress":"page 7"`), true)
}

// A cursor that is too large is refused before anything is sent. A message that no worker delivered keeps its progress
// in memory, so that a handler can be tested without a server.
func TestProgressOfAMessageInATest(t *testing.T) {
	t.Parallel()
	var invalid *lua.InvalidError
	m := &Message{ID: "m"}
	err := m.SaveProgress(t.Context(), []byte(strings.Repeat("x", MaxProgressBytes+1)))
	if !errors.As(err, &invalid) || invalid.Field != "cursor" {
		t.Errorf("a large cursor: %v", err)
	}
	cursor := []byte("page 7")
	if err := m.SaveProgress(t.Context(), cursor); err != nil {
		t.Fatal(err)
	}
	cursor[0] = 'x'
	redistest.Want(t, "progress", string(m.Progress), "page 7")
	if err := m.SaveProgress(t.Context(), nil); err != nil || m.Progress != nil {
		t.Error(err, m.Progress)
	}
}
