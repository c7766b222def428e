package tracing_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/tracing"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv("DUESTREAM_TEST_CHILD_URL"); url != "" {
		child(url, os.Getenv("DUESTREAM_TEST_CHILD_PREFIX"))
	}
	redistest.Main(m)
}

// child is a worker with tracing that the test kills while it handles its first message. It does not return.
func child(url, prefix string) {
	ctx := context.Background()
	r, err := bridge.DialWait(ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	w, err := bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Handler: func(context.Context, *bridge.Message) error {
			fmt.Println("handling")
			select {}
		}}, tracing.Config{Provider: sdktrace.NewTracerProvider()}))
	if err != nil {
		panic(err)
	}
	panic(w.Run(ctx))
}

// startChild starts a process that runs child. kill waits until the child handles a message, and then kills it.
func startChild(t *testing.T, prefix string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DUESTREAM_TEST_CHILD_URL="+redistest.Shared(t).URL(), "DUESTREAM_TEST_CHILD_PREFIX="+prefix)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "handling\n" {
			t.Errorf("the child says %q: %v", line, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// serve runs a bridge until the test ends. Failed messages are retried at once.
func serve(t *testing.T, r *bridge.Redis, prefix string) {
	t.Helper()
	defaults := bridge.Policy{VisibilityTimeout: time.Second, MaxAttempts: 10, RetryMin: 10 * time.Millisecond,
		RetryMax: 20 * time.Millisecond}
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, AnyServer: true, Defaults: defaults})
	if err != nil {
		t.Fatal(err)
	}
	run(t, b.Run)
}

// run runs a bridge or a worker until stop is called, or the test ends.
func run(t *testing.T, begin func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- begin(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// work runs a worker with tracing until so many attempts are settled. The handler fails in the first of these attempts:
// failures says in how many. Only the last attempt may be acknowledged.
func work(t *testing.T, r *bridge.Redis, prefix string, provider trace.TracerProvider, failures, attempts int) {
	t.Helper()
	settled, n := make(chan bridge.Settlement, 100), 0 // n: calls of the handler
	w, err := bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{Redis: r, Prefix: prefix, Queue: "orders", Group: "billing",
		Concurrency: 1, Settled: func(_ *bridge.Message, s bridge.Settlement) { settled <- s },
		Handler: func(context.Context, *bridge.Message) error {
			if n++; n <= failures {
				return errors.New("the card was declined")
			}
			return nil
		}}, tracing.Config{Provider: provider}))
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, w.Run)
	for i := range attempts {
		select {
		case s := <-settled:
			if s == bridge.Acknowledged && i < attempts-1 {
				t.Errorf("attempt %d: %s", i+1, s)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("attempt %d is not settled", i+1)
		}
	}
	stop()
}

// normal returns an attribute's value, replaced if it differs from run to run.
func normal(name, value string) string {
	switch name {
	case "messaging.client.id":
		return "<consumer>"
	case "duestream.entry":
		return "<entry>"
	case "duestream.lateness", "duestream.delay":
		return "<seconds>"
	}
	return strings.ReplaceAll(value, "\n", `\n`)
}
