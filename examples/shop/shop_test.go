package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	_ "modernc.org/sqlite"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/bridgetest"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/bridge/outbox"
)

// testShop is a shop with a database of its own, whose time the test moves.
type testShop struct {
	*Shop
	*bridgetest.Kit
	t     *testing.T
	relay *outbox.Relay
	mu    sync.Mutex
	mails []string
}

// newShop returns a shop whose handlers are wrapped in middleware, and run until the test ends.
func newShop(t *testing.T, middleware ...bridge.Middleware) *testShop {
	t.Helper()
	t.Parallel()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+
		"?_pragma=busy_timeout(5000)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	box, err := outbox.New(outbox.Config{Dialect: outbox.SQLite})
	if err != nil {
		t.Fatal(err)
	}
	s := &testShop{t: t, Kit: bridgetest.New(t)}
	s.Shop = &Shop{DB: db, Outbox: box, Mail: s.mail,
		Config: Config{RemindAfter: 20 * time.Minute, CloseAfter: 30 * time.Minute}}
	s.relay, err = outbox.NewRelay(outbox.RelayConfig{Outbox: box, DB: db, Client: s.Client()})
	if err := errors.Join(err, s.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	mux := s.Mux(slog.New(slog.DiscardHandler))
	mux.Use(middleware...)
	s.Work(mux, "shop")
	return s
}

func (s *testShop) mail(_ context.Context, _, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails = append(s.mails, text)
	return nil
}

func (s *testShop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// place places an order, and hands its messages over to duestream.
func (s *testShop) place(item string) (id string) {
	s.t.Helper()
	id, err := s.Place(s.t.Context(), item)
	s.must(errors.Join(err, s.relay.Flush(s.t.Context())))
	return id
}

func (s *testShop) want(id, state string, mails ...string) {
	s.t.Helper()
	o, err := s.Find(s.t.Context(), id)
	s.must(err)
	if o.State != state || !slices.Equal(s.mails, mails) {
		s.t.Errorf("state %q and mails %q, want %q and %q", o.State, s.mails, state, mails)
	}
}

func TestAnUnpaidOrderIsClosedAfter30Minutes(t *testing.T) {
	s := newShop(t)
	id := s.place("a lamp")
	s.Advance(19 * time.Minute)
	s.want(id, "unpaid")
	s.Advance(10 * time.Minute)
	s.want(id, "unpaid", "Please pay your order: a lamp")
	s.Advance(time.Minute)
	s.want(id, "closed", "Please pay your order: a lamp", "We have closed your order: a lamp")
	s.Advance(24 * time.Hour) // nothing comes twice
	s.want(id, "closed", "Please pay your order: a lamp", "We have closed your order: a lamp")
}

// A payment cancels both messages. Without the cancellation they would stay for the rest of the 30 minutes. The
// handlers would hide this, because they check the order.
func TestAPaidOrderHasNoMessages(t *testing.T) {
	s := newShop(t)
	id, other := s.place("a lamp"), s.place("a chair")
	s.Advance(10 * time.Minute)
	s.must(errors.Join(s.Pay(t.Context(), id), s.Pay(t.Context(), id), s.relay.Flush(t.Context())))
	bridgetest.RequireNothing(s.Kit, RemindOrder, bridgetest.ID(messageID(RemindOrder, id)))
	bridgetest.RequireNothing(s.Kit, CloseOrder, bridgetest.ID(messageID(CloseOrder, id)))
	bridgetest.RequireScheduled(s.Kit, CloseOrder, bridgetest.ID(messageID(CloseOrder, other)))
	s.Advance(time.Hour)
	s.want(id, "paid", "Please pay your order: a chair", "We have closed your order: a chair")
	s.want(other, "closed", "Please pay your order: a chair", "We have closed your order: a chair")
	if err := s.Pay(t.Context(), other); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("paying a closed order: %v", err)
	}
}

// The relay has not yet handed over the cancellation when the messages are due.
func TestAPaymentCountsBeforeItsCancellationArrives(t *testing.T) {
	s := newShop(t)
	id := s.place("a lamp")
	s.must(s.Pay(t.Context(), id))
	s.Advance(time.Hour)
	s.want(id, "paid")
	s.must(s.relay.Flush(t.Context())) // too late, and not an error
	if n := s.relay.Stats().TooLate; n != 2 {
		t.Errorf("%d cancellations were too late, want 2", n)
	}
}

// The worker does its work, but dies or loses its connection before the acknowledgement. So each message comes again.
func TestAMessageThatComesAgainDoesNothing(t *testing.T) {
	s := newShop(t, func(next bridge.Handler) bridge.Handler {
		return func(ctx context.Context, m *bridge.Message) error {
			if err := next(ctx, m); err != nil || m.Attempt > 2 {
				return err
			}
			return bridge.RetryAfter(time.Minute, errors.New("the connection is lost"))
		}
	})
	id := s.place("a lamp")
	s.Advance(30 * time.Minute)
	bridgetest.RequireScheduled(s.Kit, CloseOrder, bridgetest.Attempt(2))
	s.Advance(time.Hour)
	bridgetest.RequireNothing(s.Kit, CloseOrder)
	s.want(id, "closed", "Please pay your order: a lamp", "We have closed your order: a lamp")
}

// The second message is refused after the order and the first message were written.
func TestARolledBackOrderHasNoMessages(t *testing.T) {
	s := newShop(t)
	s.CloseAfter = 11 * 365 * 24 * time.Hour
	id, err := s.Place(t.Context(), "a lamp")
	if !errors.Is(err, bridge.ErrInvalid) {
		t.Fatalf("error: %v", err)
	}
	s.must(s.relay.Flush(t.Context()))
	s.RequireNothingIn("orders")
	if o, err := s.Find(t.Context(), id); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("order %v, error %v", o, err)
	}
}

func TestHTTP(t *testing.T) {
	s := newShop(t)
	m, err := metrics.New(metrics.Config{})
	s.must(err)
	server := httptest.NewServer(s.Routes(m))
	defer server.Close()
	call := func(method, path, body string, status int) (o Order) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		s.must(err)
		response, err := server.Client().Do(request)
		s.must(err)
		defer response.Body.Close()
		if response.StatusCode != status {
			t.Fatalf("%s %s: %s, want %d", method, path, response.Status, status)
		}
		if response.Header.Get("Content-Type") == "application/json" {
			s.must(json.NewDecoder(response.Body).Decode(&o))
		}
		return o
	}
	call("POST", "/orders", "{}", 400)
	call("GET", "/orders/none", "", 404)
	call("POST", "/orders/none/pay", "", 404)
	lamp, chair := call("POST", "/orders", `{"item": "a lamp"}`, 201), call("POST", "/orders", `{"item": "a chair"}`, 201)
	call("POST", "/orders/"+lamp.ID+"/pay", "", 200)
	s.must(s.relay.Flush(t.Context()))
	s.Advance(30 * time.Minute)
	call("POST", "/orders/"+chair.ID+"/pay", "", 409)
	if got, want := call("GET", "/orders/"+lamp.ID, "", 200), (Order{lamp.ID, "a lamp", "paid"}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := call("GET", "/orders/"+chair.ID, "", 200), (Order{chair.ID, "a chair", "closed"}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	call("GET", "/metrics", "", 200)
}

// The trace of a message leads to the request that scheduled it, although the relay sends it after the request has
// ended.
func TestAMessageHasTheTraceOfItsRequest(t *testing.T) {
	s := newShop(t)
	spans := tracetest.NewInMemoryExporter()
	s.Tracing.Provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	request := httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader(`{"item": "a lamp"}`))
	s.Routes(prometheus.NewRegistry()).ServeHTTP(httptest.NewRecorder(), request)
	s.must(s.relay.Flush(t.Context()))
	own := spans.GetSpans()[0]
	if own.Name != "POST /orders" {
		t.Errorf("span %q", own.Name)
	}
	want := "00-" + own.SpanContext.TraceID().String() + "-" + own.SpanContext.SpanID().String() + "-01"
	bridgetest.RequireScheduled(s.Kit, RemindOrder, bridgetest.Header("traceparent", want))
	bridgetest.RequireScheduled(s.Kit, CloseOrder, bridgetest.Header("traceparent", want))
}
