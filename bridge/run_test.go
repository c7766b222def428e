package bridge

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// stops records the order in which services stop. Each service reports which others still run when it is stopped.
type stops struct {
	began   chan string
	stopped chan string
}

func (s stops) service(name string, result error) func(context.Context) error {
	return func(ctx context.Context) error {
		s.began <- name
		<-ctx.Done()
		s.stopped <- name
		return result
	}
}

func newStops() stops { return stops{make(chan string, 3), make(chan string, 3)} }

// Services stop in their order, each after the one before it has returned, and all errors are returned.
func TestRunStopsServicesInTheirOrder(t *testing.T) {
	for range 20 { // services that stop together may stop in this order by chance
		s := newStops()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		last := errors.New("last")
		go func() {
			ended <- Run(ctx, s.service("http", nil), s.service("worker", nil), s.service("bridge", last))
		}()
		began := []string{<-s.began, <-s.began, <-s.began}
		slices.Sort(began)
		redistest.Want(t, "began", fmt.Sprint(began), "[bridge http worker]")
		stop()
		redistest.Want(t, "stopped", fmt.Sprint(<-s.stopped, <-s.stopped, <-s.stopped), "httpworkerbridge")
		if err := <-ended; !errors.Is(err, last) {
			t.Fatalf("error: %v", err)
		}
	}
}

// A service that returns without an error stops the others too: a program without its worker must not go on.
func TestRunStopsAllWhenOneServiceReturns(t *testing.T) {
	s := newStops()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	err := Run(ctx, s.service("http", nil), func(ctx context.Context) error {
		redistest.Want(t, "value", fmt.Sprint(ctx.Value(key{})), "value")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "stopped", <-s.stopped, "http")
}

// A service that ends its goroutine must count as one that returns: t.FailNow in a test ends the goroutine.
func TestRunStopsAllWhenAServiceEndsItsGoroutine(t *testing.T) {
	s := newStops()
	err := Run(t.Context(), s.service("http", nil), func(context.Context) error { runtime.Goexit(); return nil })
	redistest.Want(t, "error", fmt.Sprint(err), "run: a service ended its goroutine")
	redistest.Want(t, "stopped", <-s.stopped, "http")
}

func TestRunRefusesAServiceThatIsNil(t *testing.T) {
	started := false
	err := Run(t.Context(), func(context.Context) error { started = true; return nil }, nil)
	if !errors.Is(err, ErrInvalid) || started {
		t.Errorf("error %v, started %t", err, started)
	}
	if err := Run(t.Context()); err != nil {
		t.Error(err)
	}
}
