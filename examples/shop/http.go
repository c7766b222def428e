package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Order is an order as HTTP shows it.
type Order struct {
	ID    string `json:"id"`
	Item  string `json:"item"`
	State string `json:"state"`
}

// Server returns a function that serves HTTP until its context is cancelled. Then it waits for the running requests.
func (s *Shop) Server(address string, metrics prometheus.Collector) func(context.Context) error {
	return func(ctx context.Context) error {
		server := &http.Server{Addr: address, Handler: s.Routes(metrics), ReadHeaderTimeout: 5 * time.Second}
		shutdown := make(chan error, 1)
		stop := context.AfterFunc(ctx, func() {
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			shutdown <- server.Shutdown(limited)
		})
		defer stop()
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return <-shutdown
	}
}

// Routes returns the handler of all requests.
func (s *Shop) Routes(metrics prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	mux.HandleFunc("POST /orders/{id}/pay", s.postPayment)
	mux.HandleFunc("GET /orders/{id}", s.getOrder)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return s.traced(mux)
}

func (s *Shop) postOrder(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&o); err != nil || o.Item == "" {
		http.Error(w, `the body must be {"item": "…"}, at most 4 KiB`, http.StatusBadRequest)
		return
	}
	id, err := s.Place(r.Context(), o.Item)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Location", "/orders/"+id)
	s.answer(w, r, id, http.StatusCreated)
}

func (s *Shop) postPayment(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, err := s.Find(r.Context(), id); err != nil {
		fail(w, err)
		return
	}
	err := s.Pay(r.Context(), id)
	if errors.Is(err, sql.ErrNoRows) {
		http.Error(w, "the order is closed", http.StatusConflict)
		return
	}
	if err != nil {
		fail(w, err)
		return
	}
	s.answer(w, r, id, http.StatusOK)
}

func (s *Shop) getOrder(w http.ResponseWriter, r *http.Request) {
	s.answer(w, r, r.PathValue("id"), http.StatusOK)
}

// Find returns an order, or sql.ErrNoRows.
func (s *Shop) Find(ctx context.Context, id string) (Order, error) {
	o := Order{ID: id}
	err := s.DB.QueryRowContext(ctx, "SELECT item, state FROM orders WHERE id = $1", id).Scan(&o.Item, &o.State)
	return o, err
}

func (s *Shop) answer(w http.ResponseWriter, r *http.Request, id string, status int) {
	o, err := s.Find(r.Context(), id)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o) // the client has gone if this fails
}

func fail(w http.ResponseWriter, err error) {
	if errors.Is(err, sql.ErrNoRows) {
		http.Error(w, "there is no such order", http.StatusNotFound)
		return
	}
	slog.Error("request failed", "error", err)
	http.Error(w, "try again later", http.StatusInternalServerError)
}

// traced makes a span for each request. The span continues the trace of the caller. Without tracing, traced does
// nothing.
func (s *Shop) traced(next http.Handler) http.Handler {
	if s.Tracing.Provider == nil {
		return next
	}
	tracer := s.Tracing.Provider.Tracer("shop")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		r = r.WithContext(ctx)
		next.ServeHTTP(w, r)
		span.SetName(r.Pattern) // "POST /orders/{id}/pay": known after routing, and without an ID
	})
}
