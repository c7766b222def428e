package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A queue whose group has used up its rate must not hold up later queues of the worker, in either order of queues.
func TestARateHoldsUpNoOtherQueue(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprint("strict=", strict), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			_, all := r.queues(map[string]int{"limited": 20, "free": 1}, "limited", "free")
			var got calls
			r.serve(WorkerConfig{Queues: all, Strict: strict, GroupRate: "1/h", GroupBurst: 2,
				Handler: func(_ context.Context, m *Message) error { got.add(m); return nil }})
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				return strings.Count(strings.Join(got.all(), " "), "limited") == 2 && len(got.all()) == 3,
					fmt.Sprint(got.all())
			})
		})
	}
}

// A server at maxmemory must not stop a group with a rate.
func TestARateOnAFullServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	r.Groups("g")
	r.Fill(40)
	r.Do("CONFIG", "SET", "maxmemory", "1")
	var handled atomic.Int64
	r.start(WorkerConfig{GroupRate: "100/s", GroupBurst: 5,
		Handler: func(context.Context, *Message) error { handled.Add(1); return nil }})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return handled.Load() == 40, fmt.Sprint(handled.Load(), " handled")
	})
}

// While the bucket cannot be read, no handler may start, and the worker must say that it is failing.
func TestNothingIsHandledWhileTheRateIsNotKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(3)
	bucket := r.Keys.GroupRate("g")
	r.Do("HSET", bucket, "a", "b")
	var handled atomic.Int64
	w, _ := r.start(WorkerConfig{GroupRate: "1000/s",
		Handler: func(context.Context, *Message) error { handled.Add(1); return nil }})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		err := w.Ready()
		return err != nil && strings.Contains(err.Error(), "a key holds the wrong type"), fmt.Sprint(err)
	})
	redistest.Want(t, "handled", handled.Load(), 0)
	r.Do("DEL", bucket)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return handled.Load() == 3 && w.Ready() == nil, fmt.Sprint(handled.Load(), " handled, ", w.Ready())
	})
}

// NewWorker must name all faults of the rate.
func TestFaultsOfARate(t *testing.T) {
	t.Parallel()
	_, err := NewWorker(WorkerConfig{GroupRate: "5/d", GroupBurst: -1})
	for _, want := range []string{
		`group rate "5/d": must be a whole number between 1 and 1000000, and /s, /m or /h: 500/s`,
		`group burst "-1": must be between 0 and 1000000`, "handler"} {
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error:\n%v", want, err)
		}
	}
	_, err = NewWorker(WorkerConfig{GroupBurst: 5})
	if err == nil || !strings.Contains(err.Error(), `group burst "5": needs a group rate`) {
		t.Error(err)
	}
}
