package stream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
)

// A worker must read only as many messages as Admit allows, so that the others stay ready for other workers. An error
// of Admit must be logged, and must not end the worker.
func TestAWorkerTakesWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	r, book := newRig(t, redistest.Shared(t)), &queuetest.LogBook{}
	r.Groups("g")
	for i := range 5 {
		r.Ready(fmt.Sprint("m", i))
	}
	allowed, done := make(chan int), make(chan struct{})
	defer close(done)
	w, stop := r.start(WorkerConfig{
		Logger: book.Logger(), Block: 20 * time.Millisecond,
		Admit: func(ctx context.Context, most int) (int, error) {
			if most != DefaultConcurrency {
				t.Error("most is ", most)
			}
			select {
			case n := <-allowed:
				if n < 0 {
					return 0, errors.New("nobody can tell")
				}
				return n, nil
			case <-ctx.Done():
				return 0, nil
			}
		},
		Handler: func(ctx context.Context, _ *Message) error {
			select {
			case <-done:
			case <-ctx.Done():
			}
			return nil
		},
		ShutdownTimeout: -1,
	})
	taken := uint64(0)
	for _, n := range []int{1, -1, 2, 1} { // -1 = Admit returns an error
		allowed <- n
		taken += uint64(max(0, n))
		redistest.Eventually(t, 10*time.Second, func() (bool, string) {
			return w.Stats().Delivered == taken, fmt.Sprint(w.Stats().Delivered, " were taken, and not ", taken)
		})
		redistest.Want(t, "pending", r.Pending("g"), int64(taken))
	}
	redistest.Want(t, "log lines about the error", book.Count("worker is failing"), 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
	redistest.Want(t, "pending after a stop", r.Pending("g"), int64(0))
}

// If a queue is paused while its worker waits in Admit, the worker must take no message when Admit returns. Otherwise a
// message would be delivered during the pause.
func TestWhatIsAdmittedInAPauseIsNotTaken(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	asked, allowed := make(chan int, 100), make(chan int)
	w, _ := r.start(WorkerConfig{Handler: func(context.Context, *Message) error { return nil },
		Admit: func(ctx context.Context, _ int) (int, error) {
			asked <- 1
			select {
			case n := <-allowed:
				return n, nil
			case <-ctx.Done():
				return 0, nil
			}
		}})
	<-asked
	r.Ready("m")
	if _, err := PauseWorkers(t.Context(), r.Client, r.Prefix, r.Queue, ""); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 4*policy.RefreshInterval, func() (bool, string) {
		return firstPartition(w).policy.Load().HeldWorkers, "the worker has not seen the pause"
	})
	allowed <- 1
	if _, err := Pause(t.Context(), r.Client, r.Prefix, r.Queue, "", false); err != nil { // false: resume the queue
		t.Fatal(err)
	}
	<-asked // Admit is called again: the worker has not used the first admission
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "delivered", w.Stats().Delivered, uint64(0))
	allowed <- 1
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1, "the message is not taken"
	})
}
