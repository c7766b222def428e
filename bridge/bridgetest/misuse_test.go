package bridgetest_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/bridgetest"
)

// handle returns a mux whose only handler is that of CloseOrder.
func handle(handler func(context.Context, *bridge.Delivery[Order]) error) *bridge.Mux {
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, handler)
	return mux
}

func schedule(t bridgetest.TB, k *bridgetest.Kit, options ...bridge.Option) {
	t.Helper()
	if _, err := CloseOrder.Schedule(k.Context(), k.Client(), Order{ID: 42}, options...); err != nil {
		t.Fatalf("%v", err)
	}
}

func TestTimeDoesNotRunBackwards(t *testing.T) {
	t.Parallel()
	fail(t, func(t *failing) { bridgetest.New(t).Advance(-time.Second) }).
		want("advance by -1s: must not be negative")
	fail(t, func(t *failing) {
		k := bridgetest.New(t)
		k.AdvanceTo(k.Now().Add(-time.Millisecond))
	}).want("must not be before the time of the kit")
	fail(t, func(t *failing) { bridgetest.New(t).AdvanceTo(time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)) }).
		want("must be between 2001-09-09 and 2286-11-20")
	fail(t, func(t *failing) {
		start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		bridgetest.NewWith(t, bridgetest.Config{Start: start}).Advance(math.MaxInt64)
	}).want(`"2318-06-10T23:47:16Z": must be between 2001-09-09 and 2286-11-20`)
	fail(t, func(t *failing) { bridgetest.New(t).AdvanceTo(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)) }).
		want(`"9999-01-01T00:00:00Z": must be between 2001-09-09 and 2286-11-20`)
}

func TestAConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	fail(t, func(t *failing) {
		bridgetest.NewWith(t, bridgetest.Config{URL: "redis://127.0.0.1:1", InProcess: true, Patience: -1,
			Start: time.Unix(1, 0)})
	}).want("URL", "must be empty with InProcess", "Start", "must be between 2001", "Patience", "must not be negative")
	fail(t, func(t *failing) { bridgetest.NewWith(t, bridgetest.Config{URL: "redis://127.0.0.1:1"}) }).want("refused")
	fail(t, func(t *failing) { bridgetest.New(t).Work(&bridge.Mux{}, "") }).want("group", "mux", "has no handler")
	fail(t, func(t *failing) { bridgetest.New(t).Run(bridge.WorkerConfig{Prefix: "mine"}) }).
		want("Redis and Prefix must not be set")
}

// A handler that ignores everything must not hang the test: the failure says which message it has, and since when.
func TestAHandlerThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	release, returned := make(chan struct{}), make(chan struct{})
	f := fail(t, func(t *failing) {
		k := bridgetest.NewWith(t, bridgetest.Config{Patience: 200 * time.Millisecond})
		k.Run(bridge.WorkerConfig{Group: "shop", CancelGrace: time.Millisecond,
			Mux: handle(func(context.Context, *bridge.Delivery[Order]) error {
				defer close(returned)
				<-release
				return nil
			})})
		schedule(t, k, bridge.WithID("close-42"), bridge.In(time.Minute))
		k.Advance(time.Hour)
	})
	close(release)
	<-returned
	f.want("nothing happened for 200ms (Config.Patience), and the clock waits",
		`the handler of message "close-42" (queue "orders", group "shop", kind "close-order", attempt 1) has run for `)
}

// The worker of an earlier deployment has stopped, and its group is still there: nobody waits for it.
func TestAGroupWithoutAWorkerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	k := bridgetest.New(t)
	if _, err := bridge.CreateGroup(t.Context(), k.Redis(), k.Prefix(), "orders", "nobody"); err != nil {
		t.Fatal(err)
	}
	closed := 0
	k.Work(handle(func(context.Context, *bridge.Delivery[Order]) error {
		closed++
		return nil
	}), "shop")
	schedule(t, k, bridge.In(time.Minute))
	k.Advance(time.Minute)
	if found := bridgetest.RequireScheduled(k, CloseOrder); closed != 1 || found.State != bridgetest.Ready {
		t.Errorf("closed %d times, %s", closed, found.State)
	}
}

func TestAMessageThatComesAgainWithoutEndFailsTheTest(t *testing.T) {
	t.Parallel()
	fail(t, func(t *failing) {
		k := bridgetest.NewWith(t, bridgetest.Config{InProcess: true})
		k.Work(handle(func(context.Context, *bridge.Delivery[Order]) error { return bridge.Release(nil) }), "shop")
		schedule(t, k, bridge.WithID("close-42"))
		k.Advance(0)
	}).want(`message "close-42" (queue "orders", group "shop", kind "close-order", attempt 1) was delivered`,
		"although the clock stands still")
}

func TestAHandlerMustNotAdvance(t *testing.T) {
	t.Parallel()
	fail(t, func(t *failing) {
		k := bridgetest.New(t)
		k.Work(handle(func(context.Context, *bridge.Delivery[Order]) error {
			k.Advance(time.Minute)
			return nil
		}), "shop")
		schedule(t, k)
		k.Advance(0)
	}).want("Advance is called while another Advance runs: a handler must not call it")
}

// A kit has ended with its test, here a subtest, and its parent calls Advance.
func TestAdvanceAfterTheEndFailsTheTest(t *testing.T) {
	t.Parallel()
	var k *bridgetest.Kit
	ended := fail(t, func(t *failing) { k = bridgetest.New(t) })
	k.Advance(time.Hour)
	ended.want("Advance is called after the test has ended")
}

// The handler calls Advance before the test does. When the test ends, the handler's Advance must return before the
// cleanup ends. It must not call Fatalf, which would end the goroutine of the handler.
func TestAHandlerInAdvanceDoesNotOutliveTheTest(t *testing.T) {
	t.Parallel()
	var entered, returned atomic.Bool
	fail(t, func(t *failing) {
		k := bridgetest.New(t)
		k.Work(handle(func(context.Context, *bridge.Delivery[Order]) error {
			entered.Store(true)
			k.Advance(time.Minute)
			returned.Store(true)
			return nil
		}), "shop")
		schedule(t, k)
		for !entered.Load() {
			runtime.Gosched()
		}
		k.Advance(0)
	}).want("Advance is called while another Advance runs: a handler must not call it")
	if !returned.Load() {
		t.Error("the handler was still in Advance when the test had ended, or its goroutine was ended")
	}
}

func TestRequireFailsWithAListOfWhatIsThere(t *testing.T) {
	t.Parallel()
	open := func(t *failing) *bridgetest.Kit {
		k := bridgetest.New(t)
		schedule(t, k, bridge.WithID("a"), bridge.In(time.Minute))
		schedule(t, k, bridge.WithID("b"), bridge.In(time.Hour))
		return k
	}
	list := []string{`"a" scheduled, due in 1m0s, kind "close-order", payload "{\"id\":42}"`,
		`"b" scheduled, due in 1h0m0s`}
	fail(t, func(t *failing) { bridgetest.RequireScheduled(open(t), CloseOrder, bridgetest.ID("c")) }).
		want(append(list, `messages of kind "close-order" in queue "orders" with ID "c": none is scheduled`)...)
	fail(t, func(t *failing) { bridgetest.RequireScheduled(open(t), CloseOrder) }).
		want(append(list, "2 are scheduled, and one is required")...)
	fail(t, func(t *failing) { bridgetest.RequireNothing(open(t), CloseOrder) }).want(append(list, "none is required")...)
	fail(t, func(t *failing) { open(t).RequireNothingIn("orders", bridgetest.DueIn(time.Hour)) }).
		want(`messages in queue "orders" with due in 1h0m0s: none is required`, list[1])
	fail(t, func(t *failing) { bridgetest.RequireDead(open(t), CloseOrder) }).want("none is dead; the queue has no other")
	fail(t, func(t *failing) { open(t).RequireNothingIn("a/b") }).want("queue")
	fail(t, func(t *failing) {
		bridgetest.RequireNothing(open(t), CloseOrder, bridgetest.Where("of shop 1", func(string) bool { return true }))
	}).want(`Where("of shop 1") needs a string, and the kind has a bridgetest_test.Order`)
}

func TestDeliverFailsForAFaultyMux(t *testing.T) {
	t.Parallel()
	fail(t, func(t *failing) { bridgetest.Deliver(t, &bridge.Mux{}, CloseOrder, Order{}) }).want("mux", "has no handler")
	wrong := bridge.Kind[chan int]{Name: "wrong", Queue: "orders"}
	fail(t, func(t *failing) {
		bridgetest.Deliver(t, handle(func(context.Context, *bridge.Delivery[Order]) error { return nil }), wrong, nil)
	}).want("cannot be encoded")
}

func TestDeliverDoesNotWaitForABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux, began, failure := &bridge.Mux{}, time.Now(), errors.New("no database")
		CloseOrder.HandleBatch(mux, bridge.BatchConfig{Size: 10, Age: time.Minute},
			func(context.Context, []*bridge.Delivery[Order]) []error { return []error{failure} })
		if got := bridgetest.Deliver(t, mux, CloseOrder, Order{ID: 2}); got.Err != failure {
			t.Errorf("the outcome of a batch: %v", got)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the batch waited for %s", waited)
		}
	})
}

func TestDeliverDoesWhatAWorkerDoes(t *testing.T) {
	t.Parallel()
	failure := errors.New("no database")
	results := map[int]error{1: nil, 2: failure, 3: bridge.Snooze(time.Minute), 4: bridge.DeadLetter(failure)}
	mux := handle(func(_ context.Context, d *bridge.Delivery[Order]) error {
		if d.Value.ID == 5 {
			panic("five")
		}
		return results[d.Value.ID]
	})
	for id, want := range map[int]bridge.Action{1: bridge.ActionAcknowledge, 2: bridge.ActionRetry, 3: bridge.ActionSnooze,
		4: bridge.ActionDeadLetter, 5: bridge.ActionRetry} {
		if got := bridgetest.Deliver(t, mux, CloseOrder, Order{ID: id}); got.Action != want {
			t.Errorf("%d: %s, want %s", id, got.Action, want)
		}
	}
	unique := CloseOrder
	unique.UniqueBy = func(o Order) []any { return []any{o.ID} }
	bridgetest.Deliver(t, mux, unique, Order{ID: 1}, func(m *bridge.Message) {
		if id := "close-order:1"; m.ID != id || m.Extra["key"] != id {
			t.Errorf("a unique message has ID %q and key %q", m.ID, m.Extra["key"])
		}
	})
	other := bridge.Kind[string]{Name: CloseOrder.Name, Queue: CloseOrder.Queue}
	if got := bridgetest.Deliver(t, mux, other, "no order"); got.Action != bridge.ActionDeadLetter {
		t.Errorf("a payload that does not fit: %s", got.Action)
	}
}

// Two kits of one server do not see each other, and each has a time of its own.
func TestKitsOfParallelTestsAreApart(t *testing.T) {
	for _, length := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		t.Run(length.String(), func(t *testing.T) {
			t.Parallel()
			k := bridgetest.New(t)
			began := k.Now()
			var at []time.Duration
			k.Work(handle(func(context.Context, *bridge.Delivery[Order]) error {
				at = append(at, k.Now().Sub(began))
				return nil
			}), "shop")
			schedule(t, k, bridge.WithID("close"), bridge.In(length))
			k.Advance(2 * length)
			if len(at) != 1 || at[0] != length || k.Now().Sub(began) != 2*length {
				t.Errorf("closed after %v, now %s", at, k.Now().Sub(began))
			}
		})
	}
}
