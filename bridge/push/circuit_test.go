package push

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// A change of a target replaces its circuit only if the change may mend the target, as a new URL or timeout may.
// Regression: any change closed the circuit, so after a rotation of keys a target that was down got all waiting
// messages.
func TestAChangeKeepsTheCircuitUnlessItMayMendTheTarget(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	r, err := NewRunner(Config{Redis: g.r, Prefix: g.prefix})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(r.serving.Wait)
	t.Cleanup(stop)
	at := targetID{"q", "g"}
	circuitOf := func(target Target) *circuit {
		t.Helper()
		g.set(target)
		if unread, err := r.readTargets(ctx); err != nil || unread != nil {
			t.Fatal(unread, err)
		}
		return r.running[at].circuit
	}
	target := to("https://127.0.0.1:1/")
	first := circuitOf(target)
	for name, change := range map[string]func(){
		"keys": func() { target.Keys = []string{NewKey()} }, "concurrency": func() { target.Concurrency = 2 },
		"failures": func() { target.Failures = 3 }, "interval": func() { target.Interval = time.Minute },
		"dead status": func() { target.DeadStatus = []int{404} },
	} {
		change()
		redistest.Want(t, "the circuit is kept after a change of "+name, circuitOf(target) == first, true)
	}
	redistest.Want(t, "failures that open it", first.maxFailures, 3)
	for name, change := range map[string]func(){
		"url": func() { target.URL += "hook" }, "timeout": func() { target.Timeout = time.Second },
		"networks": func() { target.Networks = loopback[:1] }, "headers": func() { target.Headers = map[string]string{"A": "b"} },
	} {
		before := r.running[at].circuit
		change()
		redistest.Want(t, "the circuit is kept after a change of "+name, circuitOf(target) == before, false)
	}
}

// An open circuit with new settings probes at the new intervals. It closes when the circuit breaker is switched off.
func TestAnOpenCircuitTakesNewNumbers(t *testing.T) {
	t.Parallel()
	target := Target{Failures: 1, Interval: time.Hour}.WithDefaults()
	c := newCircuit(target, slog.New(slog.DiscardHandler))
	c.begin(func() {})
	c.record(false, true, errors.New("down"))
	redistest.Want(t, "the open circuit waits for about an hour", c.wait() > 30*time.Minute, true)
	target.Interval, target.MaxInterval = time.Second, time.Minute
	c.configure(target)
	redistest.Want(t, "the open circuit waits for the new interval", c.wait() > 0 && c.wait() <= time.Minute, true)
	target.Failures = -1
	c.configure(target)
	redistest.Want(t, "wait of a circuit that is switched off", c.wait(), 0)
}
