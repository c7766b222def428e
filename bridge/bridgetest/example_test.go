package bridgetest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/bridgetest"
)

// inExample stands in for *testing.T, which an example does not have.
type inExample struct{ cleanups []func() }

func (t *inExample) Helper()                           {}
func (t *inExample) Cleanup(end func())                { t.cleanups = append(t.cleanups, end) }
func (t *inExample) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *inExample) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *inExample) end() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

// ctx stands in for t.Context.
var ctx = context.Background()

func ExampleKit() {
	t := &inExample{}
	defer t.end()

	k := bridgetest.New(t)
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[Order]) error {
		fmt.Println("closed:", d.Value.ID)
		return nil
	})
	k.Work(mux, "shop")
	if _, err := CloseOrder.Schedule(ctx, k.Client(), Order{ID: 42}, bridge.In(30*time.Minute)); err != nil {
		t.Fatalf("%v", err)
	}

	k.Advance(29 * time.Minute)
	fmt.Println("after 29 minutes")
	k.Advance(time.Minute)
	bridgetest.RequireNothing(k, CloseOrder)
	// Output:
	// after 29 minutes
	// closed: 42
}

func ExampleConfig() {
	t := &inExample{}
	defer t.end()

	k := bridgetest.NewWith(t, bridgetest.Config{
		InProcess: true,
		Start:     time.Date(2026, 12, 31, 23, 0, 0, 0, time.UTC),
		Defaults:  bridge.Policy{MaxAttempts: 3},
	})
	k.Advance(2 * time.Hour)
	fmt.Println(k.Now().UTC().Format(time.DateTime))
	// Output: 2027-01-01 01:00:00
}

func ExampleMatch() {
	t := &inExample{}
	defer t.end()

	k := bridgetest.New(t)
	for id := 1; id <= 3; id++ {
		if _, err := CloseOrder.Schedule(ctx, k.Client(), Order{id}, bridge.In(time.Hour)); err != nil {
			t.Fatalf("%v", err)
		}
	}

	isSecond := bridgetest.Where("of order 2", func(o Order) bool { return o.ID == 2 })
	found := bridgetest.RequireScheduled(k, CloseOrder, isSecond, bridgetest.DueIn(time.Hour))
	fmt.Println(found.Value.ID, found.State)
	// Output: 2 scheduled
}

func ExampleMessage() {
	t := &inExample{}
	defer t.end()

	k := bridgetest.New(t)
	k.Run(bridge.WorkerConfig{Queue: "orders", Group: "shop", Handler: func(context.Context, *bridge.Message) error {
		return bridge.DeadLetter(errors.New("no such order"))
	}})
	if _, err := k.Client().Schedule(ctx, "orders", []byte("42"), bridge.WithID("close-42")); err != nil {
		t.Fatalf("%v", err)
	}
	k.Advance(0)

	letter := k.RequireDeadIn("orders", bridgetest.ID("close-42"))
	fmt.Println(letter.Group, letter.Reason, letter.Error)
	// Output: shop dead_letter no such order
}

func ExampleState() {
	t := &inExample{}
	defer t.end()

	k := bridgetest.New(t)
	if _, err := k.Client().Schedule(ctx, "orders", []byte("42"), bridge.In(time.Minute)); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Println(k.RequireScheduledIn("orders").State)
	k.Advance(time.Minute) // there is no worker
	fmt.Println(k.RequireScheduledIn("orders").State == bridgetest.Ready)
	// Output:
	// scheduled
	// true
}

func ExampleTB() {
	var t bridgetest.TB = &inExample{} // a *testing.T is one, too, and so is a *testing.B
	outcome := bridgetest.Deliver(t, NewShop(nil).Mux(), CloseOrder, Order{ID: 42})
	fmt.Println(outcome.Action)
	// Output: acknowledge
}

func ExampleDeliver() {
	t := &inExample{}
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[Order]) error {
		if d.Attempt < 3 {
			return bridge.RetryAfter(time.Minute, errors.New("the database is away"))
		}
		return bridge.DeadLetter(errors.New("given up"))
	})

	first := bridgetest.Deliver(t, mux, CloseOrder, Order{ID: 42})
	third := bridgetest.Deliver(t, mux, CloseOrder, Order{ID: 42}, func(m *bridge.Message) { m.Attempt = 3 })
	fmt.Println(first.Action, first.Delay)
	fmt.Println(third.Action, third.Err)
	// Output:
	// retry 1m0s
	// dead_letter given up
}
