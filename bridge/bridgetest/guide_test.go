package bridgetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/bridgetest"
)

// The Go code of docs/guides/testing.md is in this file, line by line.

type Order struct {
	ID int `json:"id"`
}

var CloseOrder = bridge.Kind[Order]{Name: "close-order", Queue: "orders"}

// Shop closes orders that are not paid within 30 minutes.
type Shop struct {
	client *bridge.Client
	mu     sync.Mutex
	paid   map[int]bool
	closed map[int]bool

	withoutCancel bool // the fault that the test must find
}

func (s *Shop) Place(ctx context.Context, id int) error {
	_, err := CloseOrder.Schedule(ctx, s.client, Order{id}, bridge.WithID(fmt.Sprint("close-", id)),
		bridge.In(30*time.Minute))
	return err
}

func (s *Shop) Pay(ctx context.Context, id int) error {
	s.mu.Lock()
	s.paid[id] = true
	s.mu.Unlock()
	if s.withoutCancel {
		return nil
	}
	err := s.client.Cancel(ctx, CloseOrder.Queue, fmt.Sprint("close-", id))
	if errors.Is(err, bridge.ErrNotScheduled) {
		return nil // it is being closed, and the handler sees that it is paid
	}
	return err
}

func (s *Shop) Close(_ context.Context, d *bridge.Delivery[Order]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.paid[d.Value.ID] {
		s.closed[d.Value.ID] = true
	}
	return nil
}

func (s *Shop) Mux() *bridge.Mux {
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, s.Close)
	return mux
}

func (s *Shop) IsClosed(id int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed[id]
}

func NewShop(client *bridge.Client) *Shop {
	return &Shop{client: client, paid: map[int]bool{}, closed: map[int]bool{}}
}

func TestOrdersAreClosedUnlessPaid(t *testing.T) {
	k := bridgetest.New(t)
	shop := NewShop(k.Client())
	k.Work(shop.Mux(), "shop")

	if err := errors.Join(shop.Place(t.Context(), 42), shop.Place(t.Context(), 43)); err != nil {
		t.Fatal(err)
	}
	bridgetest.RequireScheduled(k, CloseOrder, bridgetest.ID("close-43"), bridgetest.DueIn(30*time.Minute))

	k.Advance(29 * time.Minute)
	if err := shop.Pay(t.Context(), 43); err != nil {
		t.Fatal(err)
	}
	bridgetest.RequireNothing(k, CloseOrder, bridgetest.ID("close-43"))

	k.Advance(time.Minute)
	if !shop.IsClosed(42) || shop.IsClosed(43) {
		t.Errorf("closed: 42 %t, 43 %t", shop.IsClosed(42), shop.IsClosed(43))
	}
}

func TestAFailedCloseIsRetried(t *testing.T) {
	k := bridgetest.New(t)
	failures := 2
	mux := &bridge.Mux{}
	CloseOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[Order]) error {
		if d.Attempt <= failures {
			return errors.New("the database is away")
		}
		return nil
	})
	k.Work(mux, "shop")
	ctx, client := t.Context(), k.Client()

	_, err := CloseOrder.Schedule(ctx, client, Order{ID: 42}, bridge.RetryDelays(time.Minute, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	k.Advance(0) // the first attempt fails
	bridgetest.RequireScheduled(k, CloseOrder, bridgetest.Attempt(2), bridgetest.DueIn(time.Minute))
	k.Advance(time.Minute) // the second fails
	bridgetest.RequireScheduled(k, CloseOrder, bridgetest.Attempt(3), bridgetest.DueIn(time.Hour))
	k.Advance(time.Hour)
	bridgetest.RequireNothing(k, CloseOrder)
}

func TestAReportIsSentAtSevenAlsoInSummer(t *testing.T) {
	k := bridgetest.NewWith(t, bridgetest.Config{Start: time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)})
	var sent []string
	k.Run(bridge.WorkerConfig{Queue: "reports", Group: "mailer", Handler: func(context.Context, *bridge.Message) error {
		sent = append(sent, k.Now().UTC().Format("Jan 2 15:04"))
		return nil
	}})

	_, err := k.Client().Recur(t.Context(), bridge.Recurrence{Name: "report", Queue: "reports", Cron: "0 7 * * *",
		Zone: "Europe/Paris"})
	if err != nil {
		t.Fatal(err)
	}
	k.Advance(48 * time.Hour)
	if got := fmt.Sprint(sent); got != "[Mar 29 05:00 Mar 30 05:00]" { // summer time begins on March 29
		t.Error(got)
	}
}

func TestCloseLeavesAPaidOrderAlone(t *testing.T) {
	shop := NewShop(nil)
	shop.paid[42] = true

	outcome := bridgetest.Deliver(t, shop.Mux(), CloseOrder, Order{ID: 42})
	if outcome.Action != bridge.ActionAcknowledge || shop.IsClosed(42) {
		t.Errorf("%s, closed %t", outcome.Action, shop.IsClosed(42))
	}
}

// The first test of the guide finds the fault that it is for.
func TestTheGuideFindsAMissingCancel(t *testing.T) {
	f := fail(t, func(t *failing) {
		k := bridgetest.New(t)
		shop := NewShop(k.Client())
		shop.withoutCancel = true
		k.Work(shop.Mux(), "shop")
		if err := errors.Join(shop.Place(k.Context(), 43), shop.Pay(k.Context(), 43)); err != nil {
			t.Fatalf("%v", err)
		}
		bridgetest.RequireNothing(k, CloseOrder, bridgetest.ID("close-43"))
	})
	f.want(`messages of kind "close-order" in queue "orders" with ID "close-43": none is required`,
		`"close-43" scheduled, due in 30m0s, kind "close-order", payload "{\"id\":43}"`)
}
