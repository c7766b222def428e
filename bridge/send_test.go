package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// newClient returns a client of a prefix of its own, on the shared server, with middleware.
func newClient(t *testing.T, middleware ...bridge.SendMiddleware) *bridge.Client {
	t.Helper()
	r, err := bridge.Dial(t.Context(), redistest.Shared(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return redistest.Must(bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: redistest.Shared(t).Prefix(t),
		Middleware: middleware}))
}

// noteSends returns middleware that notes each call under a name.
func noteSends(calls *[]string, name string) bridge.SendMiddleware {
	return func(next bridge.Sender) bridge.Sender {
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			for _, m := range messages {
				*calls = append(*calls, name+" "+queue+" "+m.ID+" "+m.Headers[bridge.KindHeader])
			}
			return next(ctx, queue, messages)
		}
	}
}

// Each way to send must pass through the middleware, once, the first one outermost.
func TestSendMiddlewareWrapsEveryWayToSend(t *testing.T) {
	t.Parallel()
	var calls []string
	c := newClient(t, noteSends(&calls, "outer"), noteSends(&calls, "inner"))
	ctx, soon := t.Context(), bridge.In(time.Hour)
	redistest.Must(c.Schedule(ctx, "orders", nil, bridge.WithID("schedule"), soon))
	redistest.Must(c.Send(ctx, "orders", bridge.NewMessage{ID: "send", Delay: time.Hour}))
	redistest.Must(closeOrder.Schedule(ctx, c, order{ID: 1}, bridge.WithID("kind"), soon))
	batch := []bridge.NewMessage{{ID: "a", Delay: time.Hour}, {ID: "b", Delay: time.Hour}}
	results := redistest.Must(c.SendBatch(ctx, "orders", batch))
	redistest.Want(t, "second result", results[1].ID, "b")
	redistest.Must(c.ScheduleBatch(ctx, "orders", []bridge.NewMessage{{ID: "former", Delay: time.Hour}}))
	redistest.Want(t, "calls", strings.Join(calls, "; "), "outer orders schedule ; inner orders schedule ; "+
		"outer orders send ; inner orders send ; outer orders kind close-order; inner orders kind close-order; "+
		"outer orders a ; outer orders b ; inner orders a ; inner orders b ; "+
		"outer orders former ; inner orders former ")
	_, err := c.Send(ctx, "orders", bridge.NewMessage{ID: "send", Delay: time.Hour})
	if !errors.Is(err, bridge.ErrDuplicate) {
		t.Error("the second message of an ID: ", err)
	}
}

// Middleware may add headers and refuse messages. It must not change the messages of the caller, and a refused message
// must not be stored.
func TestSendMiddlewareMayChangeAndRefuse(t *testing.T) {
	t.Parallel()
	errClosed := errors.New("the shop is closed")
	c := newClient(t, func(next bridge.Sender) bridge.Sender {
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			if queue == "closed" {
				return nil, errClosed
			}
			for i := range messages {
				bridge.Header("tenant", "north")(&messages[i])
				messages[i].ID += "-north"
			}
			return next(ctx, queue, messages)
		}
	})
	shared := map[string]string{"a": "b"}
	sent := []bridge.NewMessage{{ID: "1", Headers: shared, Delay: time.Hour},
		{ID: "2", Headers: shared, Delay: time.Hour}}
	results := redistest.Must(c.SendBatch(t.Context(), "orders", sent))
	redistest.Want(t, "IDs", results[0].ID+" "+results[1].ID, "1-north 2-north")
	redistest.Want(t, "messages of the caller", sent[0].ID+sent[1].ID+fmt.Sprint(shared), "12map[a:b]")
	for name, err := range map[string]error{
		"Send":      func() error { _, err := c.Send(t.Context(), "closed", bridge.NewMessage{ID: "1"}); return err }(),
		"SendBatch": func() error { _, err := c.SendBatch(t.Context(), "closed", sent); return err }(),
	} {
		if !errors.Is(err, errClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Cancel(t.Context(), "closed", "1"); !errors.Is(err, bridge.ErrNotScheduled) {
		t.Error("a refused message: ", err)
	}
}

// A middleware that forgets results must not make Send panic, nor tell a caller of a batch that all is well.
func TestSendMiddlewareMustReturnAResultForEachMessage(t *testing.T) {
	t.Parallel()
	c := newClient(t, func(bridge.Sender) bridge.Sender {
		return func(context.Context, string, []bridge.NewMessage) ([]bridge.Result, error) { return nil, nil }
	})
	const want = "schedule orders: the middleware returned 0 results for 1 messages, which may have been stored"
	_, err := c.Schedule(t.Context(), "orders", nil)
	redistest.Want(t, "Schedule", fmt.Sprint(err), want)
	_, err = c.SendBatch(t.Context(), "orders", make([]bridge.NewMessage, 1))
	redistest.Want(t, "SendBatch", fmt.Sprint(err), want)
}

// NewClient must name all faults of the middleware beside those of the other fields.
func TestNewClientNamesFaultsOfTheMiddleware(t *testing.T) {
	t.Parallel()
	_, err := bridge.NewClient(bridge.ClientConfig{Middleware: []bridge.SendMiddleware{nil,
		func(bridge.Sender) bridge.Sender { return nil }}})
	if !errors.Is(err, bridge.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{`middleware "nil": is required`, `middleware "nil": must return a Sender`,
		`redis "nil"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the error:\n%v", want, err)
		}
	}
}

// The lines must tell which message was stored, which was not, and why.
func TestLogSentAndLogHandled(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	log := newLog(&lines)
	c := newClient(t, bridge.LogSent(log))
	for range 2 {
		closeOrder.Schedule(t.Context(), c, order{ID: 1}, bridge.WithID("m-1"), bridge.In(time.Hour)) //nolint:errcheck
	}
	closeOrder.Schedule(t.Context(), c, order{ID: 1}, bridge.In(-time.Hour)) //nolint:errcheck
	c.Schedule(t.Context(), "no queue", nil)                                 //nolint:errcheck
	handle := bridge.LogHandled(log)(func(context.Context, *bridge.Message) error {
		return bridge.DeadLetter(errors.New("no such order"))
	})
	if err := handle(t.Context(), &bridge.Message{ID: "m-1", Queue: "orders", Group: "shop", Attempt: 1}); err == nil {
		t.Error("the error of the handler is lost")
	}
	for _, want := range []string{
		"level=INFO msg=scheduled queue=orders kind=close-order id=m-1\n",
		`level=INFO msg="not scheduled: a duplicate" queue=orders kind=close-order id=m-1 error=`,
		`level=WARN msg="not scheduled" queue=orders kind=close-order`,
		`level=WARN msg="not scheduled" queue="no queue" count=1 error=`,
		`msg=handled queue=orders group=shop kind="" id=m-1 attempt=1 outcome=dead_letter error="no such order"`,
	} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no %s in\n%s", want, lines.String())
		}
	}
}

// newLog returns a logger whose lines have no times and durations.
func newLog(to interface{ Write([]byte) (int, error) }) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "due" || a.Key == "took" {
			return slog.Attr{}
		}
		return a
	}}))
}

// Middleware may add a header to every message that a client sends.
func ExampleSendMiddleware() {
	ctx, r, prefix, end := begin()
	defer end()
	addTenant := func(next bridge.Sender) bridge.Sender {
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			for i := range messages {
				bridge.Header("tenant", "north")(&messages[i])
			}
			return next(ctx, queue, messages)
		}
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Middleware: []bridge.SendMiddleware{addTenant}})
	check(err)
	_, err = client.Schedule(ctx, "orders", []byte("42"))
	check(err)

	tenant := make(chan string)
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "shop",
		Handler: func(_ context.Context, m *bridge.Message) error {
			tenant <- m.Headers["tenant"]
			return nil
		}})
	check(err)
	ctx, stop := context.WithCancel(ctx)
	running := make(chan error)
	go func() { running <- worker.Run(ctx) }()
	fmt.Println(<-tenant)
	stop()
	check(<-running)
	// Output: north
}

// A client may refuse messages before they are sent.
func ExampleSender() {
	ctx, r, prefix, end := begin()
	defer end()
	refuseTests := func(next bridge.Sender) bridge.Sender {
		return func(ctx context.Context, queue string, messages []bridge.NewMessage) ([]bridge.Result, error) {
			if strings.HasPrefix(queue, "test-") {
				return nil, fmt.Errorf("queue %q is for tests", queue)
			}
			return next(ctx, queue, messages)
		}
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Middleware: []bridge.SendMiddleware{refuseTests}})
	check(err)
	_, err = client.Schedule(ctx, "test-orders", []byte("42"))
	fmt.Println(err)
	// Output: queue "test-orders" is for tests
}

// Both sides of an application log their messages.
func ExampleLogSent() {
	ctx, r, prefix, end := begin()
	defer end()
	log := newLog(os.Stdout) // slog.Default() in a program
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Middleware: []bridge.SendMiddleware{bridge.LogSent(log)}})
	check(err)
	_, err = closeOrder.Schedule(ctx, client, order{ID: 42}, bridge.WithID("close-42"), bridge.In(time.Hour))
	check(err)
	// Output: level=INFO msg=scheduled queue=orders kind=close-order id=close-42
}
