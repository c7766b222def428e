package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// cancelRunning cancels messages in the stream, and returns the entries found.
func (r *rig) cancelRunning(ids ...string) (found []lua.FoundEntry) {
	r.T.Helper()
	for w := (lua.EntryWalk{Limit: 100}); ; {
		next, some, err := lua.CancelEntries(r.T.Context(), r.Client, r.Keys, w, ids, lua.Durability{})
		if err != nil {
			r.T.Fatal(err)
		}
		found = append(found, some...)
		if w = next; w.Cursor == "" {
			return found
		}
	}
}

// A handler must learn within five seconds that its message was cancelled, however long the visibility timeout is.
// Whatever the handler then returns, the message is done. Only then the next message of its ordering key is released.
func TestCancelReachesARunningHandler(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Policy(map[string]string{policy.SettingVisibility: "30000"})
		returns := map[string]error{"nil": nil, "an error": errors.New("no"), "the cause": ErrCancelled, "dead": DeadLetter(nil),
			"later": Snooze(0), "back": Release(nil)}
		began, causes, settled := make(chan string, 20), make(chan error, 20), make(chan string, 20)
		w, _ := r.start(WorkerConfig{Concurrency: 10,
			Handler: func(ctx context.Context, m *Message) error {
				began <- m.ID
				if m.ID == "next" {
					return nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				if m.ID == "panics" {
					panic("cancelled")
				}
				return returns[m.ID]
			},
			Settled: func(m *Message, s Settlement) { settled <- fmt.Sprint(m.ID, " ", s) },
		})
		all := []string{"panics"}
		for id := range returns {
			all = append(all, id)
		}
		key := lua.EncodeMeta(nil, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: "k"})
		for _, id := range all {
			meta := ""
			if id == "nil" {
				meta = key
			}
			r.Enqueue(lua.Item{ID: id, When: lua.After(0), Payload: []byte("p"), Meta: meta})
		}
		r.DrainAll()
		for range all {
			<-began
		}
		r.Enqueue(lua.Item{ID: "next", When: lua.After(0), Payload: []byte("p"), Meta: key})
		r.DrainAll()
		asked := time.Now()
		redistest.Want(t, "found", len(r.cancelRunning(all...)), len(all))
		for range all {
			if cause := <-causes; !errors.Is(cause, ErrCancelled) {
				t.Error(cause)
			}
		}
		if took := time.Since(asked); took > 5*time.Second {
			t.Errorf("handlers learned of the cancellation after %s", took)
		}
		for range all {
			var id string
			told := <-settled
			if _, err := fmt.Sscanf(told, "%s", &id); err != nil || told[len(told)-len(" cancelled"):] != " cancelled" {
				t.Error(told)
			}
		}
		redistest.Want(t, "stats", w.Stats().Cancelled, uint64(len(all)))
		r.DrainAll()
		redistest.Want(t, "the next of the ordering key", <-began, "next")
		redistest.Want(t, "settled", <-settled, "next acknowledged")
		wantNothing(r)
	})
}

// If a handler returns nil before its worker learns of the cancellation, the message is acknowledged. If the handler
// returns an error, the message is cancelled, and gets no retry.
func TestHandlerThatReturnsBeforeItHears(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	began, end, settled := make(chan string, 2), make(chan struct{}), make(chan string, 2)
	r.start(WorkerConfig{Concurrency: 2,
		Handler: func(_ context.Context, m *Message) error {
			began <- m.ID
			<-end
			if m.ID == "fails" {
				return errors.New("no")
			}
			return nil
		},
		Settled: func(m *Message, s Settlement) { settled <- fmt.Sprint(m.ID, " ", s) },
	})
	r.Ready("fails", "works")
	<-began
	<-began
	redistest.Want(t, "found", len(r.cancelRunning("fails", "works")), 2)
	close(end)
	got := map[string]bool{<-settled: true, <-settled: true}
	if !got["fails cancelled"] || !got["works acknowledged"] {
		t.Error(got)
	}
	wantNothing(r)
}

// wantNothing waits until nothing of any message is left: no retry, no entry, no dead letter and no turn.
func wantNothing(r *rig) {
	r.T.Helper()
	redistest.Eventually(r.T, 10*time.Second, func() (bool, string) {
		got := fmt.Sprint(r.Number("ZCARD", r.Keys.Due), r.Length(r.Keys.Stream), r.Pending("g"), r.Length(r.Keys.Dead),
			r.Number("ZCARD", r.Keys.Turns))
		return got == "0 0 0 0 0", got
	})
}
