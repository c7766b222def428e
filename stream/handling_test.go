package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// The handler's context ends after shortTimeout. After another shortAbandon the handler is abandoned.
const (
	shortTimeout = 150 * time.Millisecond
	shortAbandon = 150 * time.Millisecond
)

// hangForGood ignores its context, like a handler that waits for an answer that never comes.
func hangForGood(release <-chan struct{}) { <-release }

// letters returns all dead letters of partition 0.
func (r *rig) letters() []rueidis.XRangeEntry {
	r.T.Helper()
	all := r.Client.B().Xrange().Key(r.Keys.Dead).Start("-").End("+").Build()
	letters, err := r.Client.Do(r.T.Context(), all).AsXRange()
	if err != nil {
		r.T.Fatal(err)
	}
	return letters
}

// Regression: a handler that hung kept its message, its slot and its ordering key for ever.
func TestHungHandlerIsAbandoned(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"max_attempts": "1"})
	release, causes, handled := make(chan struct{}), make(chan error, 1), make(chan string, 3)
	settled := make(chan string, 10)
	var log queuetest.LogBook
	w, stop := r.start(WorkerConfig{
		Concurrency: 1, HandlerTimeout: shortTimeout, AbandonAfter: shortAbandon, Logger: log.Logger(),
		Handler: func(ctx context.Context, m *Message) error {
			if m.ID == "hangs" {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				hangForGood(release)
				m.Extra["key"], m.EntryID = "mine", "mine"
				return nil
			}
			handled <- m.ID
			return nil
		},
		Settled: func(m *Message, s Settlement) { settled <- m.ID + " " + string(s) },
	})
	r.Enqueue(lua.Item{ID: "hangs", When: lua.After(0), Meta: `{"key":"k"}`})
	r.DrainAll()
	if cause := <-causes; !errors.Is(cause, ErrHandlerTimeout) {
		t.Errorf("cause: %v", cause)
	}
	const next = "next of the ordering key"
	r.Enqueue(lua.Item{ID: next, When: lua.After(0), Meta: `{"key":"k"}`})
	redistest.Want(t, "settled", <-settled, "hangs dead")
	r.DrainAll()
	redistest.Want(t, "the slot and the ordering key go to", <-handled, next)
	redistest.Want(t, "settled", <-settled, next+" acknowledged")
	letter := r.letters()[0].FieldValues
	redistest.Want(t, "reason", letter[lua.FieldReason], lua.ReasonHandlerTimeout)
	redistest.Want(t, "attempt", letter[lua.FieldAttempt], "1")
	redistest.Want(t, "error", letter[lua.FieldError],
		"handler_timeout: not done after 150ms: the handler ignored its context for another 150ms")
	lines := log.Lines("handler abandoned")
	redistest.Want(t, "log lines about the abandoned handler", len(lines), 1)
	for _, part := range []string{
		"id=hangs", "slot_kept=false", "abandoned_running=1", "stream.hangForGood", "goroutine ",
	} {
		if !strings.Contains(lines[0], part) {
			t.Errorf("the log lacks %q: %s", part, lines[0])
		}
	}
	redistest.Want(t, "stacks in the log", strings.Count(lines[0], "runners).run("), 1)
	before := w.Stats()
	close(release)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		n := w.pool.abandoned.running.Load()
		return n == 0, fmt.Sprintf("%d abandoned handlers run", n)
	})
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	redistest.Want(t, "stats after the handler has returned", w.Stats(), before)
	redistest.Want(t, "stats", before, WorkerStats{Delivered: 2, Acknowledged: 1, Dead: 1, TimedOut: 1, Abandoned: 1})
	redistest.Want(t, "settlements after the handler has returned", len(settled), 0)
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "free slots", w.pool.slots.free, 1)
}

// Any result of a handler after its timeout is a failed attempt, except nil and a dead letter.
func TestOutcomesAfterTheTimeout(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name       string
		outcome    func(context.Context) error
		settlement Settlement
		error      string
		delay      time.Duration
	}{
		{"nil", func(context.Context) error { return nil }, Acknowledged, "", 0},
		{"error", func(context.Context) error { return errors.New("no luck") }, Retried,
			"handler_timeout: not done after 150ms: no luck", 50 * time.Second},
		{"cause", func(ctx context.Context) error { return context.Cause(ctx) }, Retried,
			"handler_timeout: not done after 150ms",
			50 * time.Second},
		{"retry after", func(context.Context) error { return RetryAfter(time.Hour, errors.New("later")) }, Retried,
			"handler_timeout: not done after 150ms: later", time.Hour},
		{"snooze", func(context.Context) error { return Snooze(time.Hour) }, Retried, "handler_timeout: not done after 150ms",
			50 * time.Second},
		{"release", func(context.Context) error { return Release(nil) }, Retried, "handler_timeout: not done after 150ms",
			50 * time.Second},
		{"dead letter", func(context.Context) error { return DeadLetter(errors.New("never")) }, Dead, "never", 0},
		{"panic", func(context.Context) error { panic("boom") }, Retried,
			"handler_timeout: not done after 150ms: panic: boom",
			50 * time.Second},
		{"goexit", func(context.Context) error { runtime.Goexit(); return nil }, Retried,
			"handler_timeout: not done after 150ms: handler ended its goroutine", 50 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.Policy(map[string]string{"retry_delays_ms": "50000", "handler_timeout_ms": "150"})
			settled := make(chan Settlement, 1)
			w, _ := r.start(WorkerConfig{
				AbandonAfter: time.Hour, Settled: func(_ *Message, s Settlement) { settled <- s },
				Handler: func(ctx context.Context, m *Message) error {
					<-ctx.Done()
					return c.outcome(ctx)
				},
			})
			r.Ready("m")
			redistest.Want(t, "settlement", <-settled, c.settlement)
			redistest.Want(t, "timed out", w.Stats().TimedOut, uint64(1))
			redistest.Want(t, "abandoned", w.Stats().Abandoned, uint64(0))
			switch c.settlement {
			case Retried:
				member := r.Texts("ZRANGE", r.Keys.Due, "0", "-1")
				text, _ := r.Client.Do(t.Context(), r.Client.B().Hget().Key(r.Keys.Meta).Field(member[0]).Build()).ToString()
				e, ok := lua.DecodeMeta(member[0], text)
				if !ok || e.Attempt != 2 || !strings.HasPrefix(e.Error, c.error) {
					t.Errorf("retry: attempt %d, error %q, want %q", e.Attempt, e.Error, c.error)
				}
				due, err := r.Client.Do(t.Context(), r.Client.B().Zscore().Key(r.Keys.Due).Member(member[0]).Build()).AsFloat64()
				if err != nil {
					t.Fatal(err)
				}
				in := time.UnixMilli(int64(due)).Sub(queuetest.Now(t, r.Client))
				if in > c.delay || in < c.delay-30*time.Second {
					t.Errorf("due in %s, want %s", in, c.delay)
				}
			case Dead:
				redistest.Want(t, "reason", r.letters()[0].FieldValues[lua.FieldReason], lua.ReasonDeadLetter)
				redistest.Want(t, "error", r.letters()[0].FieldValues[lua.FieldError], c.error)
			}
		})
	}
}

// A worker with MaxAbandoned abandoned handlers must not free the slots of further ones. Without this bound, a worker
// whose handlers hang one after another would have any number of goroutines.
func TestAbandonedHandlersAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"retry_delays_ms": "3600000"})
	release, started := make(chan struct{}), make(chan string, 10)
	w, stop := r.start(WorkerConfig{
		Concurrency: 2, HandlerTimeout: shortTimeout, AbandonAfter: shortAbandon, MaxAbandoned: 1,
		Handler: func(_ context.Context, m *Message) error {
			started <- m.ID
			if m.ID != "quick" {
				hangForGood(release)
			}
			return nil
		},
	})
	r.Ready("a")
	<-started
	waitForAbandoned := func(n uint64) {
		t.Helper()
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			s := w.Stats()
			return s.Abandoned == n && s.Retried == n, fmt.Sprintf("%+v, want %d abandoned", s, n)
		})
	}
	waitForAbandoned(1)
	redistest.Want(t, "alive with MaxAbandoned handlers", fmt.Sprint(w.Alive()), "<nil>")
	r.Ready("b", "c")
	<-started
	<-started
	waitForAbandoned(3) // all three messages are retried, but two slots stay taken
	const trouble = "3 handlers ignore their cancelled contexts, 2 more than MaxAbandoned (1): these keep their slots"
	redistest.Want(t, "alive", fmt.Sprint(w.Alive()), trouble)
	redistest.Want(t, "ready", fmt.Sprint(w.Ready()), trouble)
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	r.Ready("quick")
	redistest.Want(t, "free slots", w.pool.slots.free, 0)
	close(release)
	redistest.Want(t, "handled after the hung handlers have returned", <-started, "quick")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return w.Alive() == nil && w.Ready() == nil, fmt.Sprint(w.Alive(), w.Ready())
	})
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	redistest.Want(t, "free slots", w.pool.slots.free, 2)
}

// A stop must leave the entry of a handler that ignores the stop pending, because another worker must not get the
// message while the handler runs. Only a handler whose timeout ended before the stop is abandoned, and its message is
// retried.
func TestTimeoutDuringTheStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		timeout time.Duration
		pending int64
		want    error
	}{
		{"while the stop waits for handlers", 500 * time.Millisecond, 1, ErrAbandoned},
		{"before the stop", 50 * time.Millisecond, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.Policy(map[string]string{"retry_delays_ms": "3600000"})
			release, started := make(chan struct{}), make(chan struct{})
			w, stop := r.start(WorkerConfig{
				HandlerTimeout: c.timeout, AbandonAfter: shortAbandon, ShutdownTimeout: -1, CancelGrace: 1500 * time.Millisecond,
				Handler: func(ctx context.Context, m *Message) error {
					close(started)
					if c.pending == 0 {
						<-ctx.Done()
					}
					hangForGood(release)
					return nil
				},
			})
			defer close(release)
			r.Ready("m")
			<-started
			if c.pending == 0 {
				redistest.Eventually(t, 5*time.Second, func() (bool, string) { return w.Stats().TimedOut == 1, "not timed out" })
			}
			if err := stop(); !errors.Is(err, c.want) {
				t.Errorf("Run: %v, want %v", err, c.want)
			}
			redistest.Want(t, "pending", r.Pending("g"), c.pending)
			redistest.Want(t, "abandoned", w.Stats().Abandoned, uint64(1-c.pending))
		})
	}
}

// A timeout that an operator sets must also end handlers that run already, because these may be the ones that hang.
func TestTimeoutThatIsSetLaterEndsHandlersThatRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	causes := make(chan error, 1)
	started := make(chan struct{})
	w, _ := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		close(started)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	}})
	r.Ready("m")
	<-started
	timeout := shortTimeout
	err := WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", policy.Update{HandlerTimeout: &timeout})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case cause := <-causes:
		if !errors.Is(cause, ErrHandlerTimeout) {
			t.Errorf("cause: %v", cause)
		}
	case <-time.After(4 * policy.RefreshInterval):
		t.Fatal("the handler still runs")
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1, fmt.Sprintf("%+v", w.Stats())
	})
}

// The message's own timeout takes precedence over that of the group, the queue, the defaults and the worker's
// configuration.
func TestTimeoutComesFromTheMostSpecificLevel(t *testing.T) {
	t.Parallel()
	cfg := WorkerConfig{HandlerTimeout: 5 * time.Second}.withDefaults()
	p := newQueueWorker(cfg, "q", newPool(1, 1), nil).partitions[0]
	timeout := func(own string, queue, defaults map[string]string) time.Duration {
		policies, err := policy.Resolve([]string{"g"}, queue, defaults)
		if err != nil {
			t.Fatal(err)
		}
		policy := policies["g"]
		p.policy.Store(&policy)
		return p.timeoutOf(&Message{Extra: map[string]string{lua.FieldHandlerTimeout: own}})
	}
	const name = policy.SettingHandlerTimeout
	queue := map[string]string{"group:g:" + name: "2000", name: "3000"}
	defaults := map[string]string{name: "4000"}
	redistest.Want(t, "message", timeout("1000", queue, defaults), time.Second)
	redistest.Want(t, "message that does not parse", timeout("-1", queue, defaults), 2*time.Second)
	redistest.Want(t, "message beyond ten years", timeout("999999999999", queue, defaults), 2*time.Second)
	redistest.Want(t, "group", timeout("", queue, defaults), 2*time.Second)
	delete(queue, "group:g:"+name)
	redistest.Want(t, "queue", timeout("", queue, defaults), 3*time.Second)
	redistest.Want(t, "defaults", timeout("", nil, defaults), 4*time.Second)
	redistest.Want(t, "worker", timeout("", nil, nil), 5*time.Second)
	redistest.Want(t, "0 in the policy", timeout("0", map[string]string{name: "0"}, defaults), 5*time.Second)
}

// The context of a handler must end exactly at the timeout, and the handler must be abandoned AbandonAfter later. The
// test runs with a simulated clock.
func TestTimesOfTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ended := make(chan time.Time, 1)
		q := newQueueWorker(WorkerConfig{Group: "g", HandlerTimeout: time.Minute, AbandonAfter: 10 * time.Second,
			Handler: func(ctx context.Context, m *Message) error {
				<-ctx.Done()
				ended <- time.Now()
				if m.ID == "returns" {
					return ctx.Err()
				}
				hangForGood(release)
				return nil
			}}.withDefaults(), "q", newPool(2, 1), nil)
		p := q.partitions[0]
		// took handles a message. It returns the times until the handler's context ended, and until the failure was
		// noted.
		took := func(id string) (context, settled time.Duration) {
			t.Helper()
			began := time.Now()
			p.startAll(p.deliveries(t.Context(), []rueidis.XRangeSlice{{ID: "1-1",
				FieldValues: []lua.FieldValue{{Field: "id", Value: id}, {Field: "attempt", Value: "3"}}}}))
			<-p.unsettled.due
			fails := p.unsettled.fails
			p.unsettled.fails = nil
			redistest.Want(t, "failures", len(fails), 1)
			redistest.Want(t, "reason", fails[0].failure.Reason, lua.ReasonHandlerTimeout)
			p.drop(fails)
			return (<-ended).Sub(began), time.Since(began)
		}
		context, settled := took("returns")
		redistest.Want(t, "context ends after", context, time.Minute)
		redistest.Want(t, "settled after", settled, time.Minute)
		context, settled = took("hangs")
		redistest.Want(t, "context ends after", context, time.Minute)
		redistest.Want(t, "settled after", settled, 70*time.Second)
		redistest.Want(t, "held deliveries", p.held.n, 0)
		close(release)
		synctest.Wait()
		redistest.Want(t, "settled again", len(p.unsettled.fails)+len(p.unsettled.acks), 0)
		redistest.Want(t, "abandoned", p.pool.abandoned.running.Load(), int64(0))
		time.Sleep(time.Hour)
		var stats WorkerStats
		p.addTo(&stats)
		redistest.Want(t, "stats", stats, WorkerStats{Delivered: 2, TimedOut: 2, Abandoned: 1})
	})
}

// Taking stacks stops the process for a moment, so with thousands of hanging handlers they must be taken for all at
// once, at most once a second, unless a handler began after the last time.
func TestStacksAreTakenOnceASecond(t *testing.T) {
	t.Parallel()
	release, ids := make(chan struct{}), make(chan uint64, 2)
	defer close(release)
	began := time.Now()
	for range 2 {
		go func() {
			ids <- goroutineID()
			hangForGood(release)
		}()
	}
	var s stackTraces
	first, second := <-ids, <-ids
	for !strings.Contains(s.stack(first, time.Now()), "hangForGood") { // wait until the goroutine hangs
	}
	s.stack(second, time.Now())
	taken := s.taken // the time at which the stacks were taken
	beginning := fmt.Sprint("goroutine ", first, " ")
	if text := s.stack(first, began); !strings.Contains(text, "hangForGood") || !strings.HasPrefix(text, beginning) {
		t.Errorf("stack: %q", text)
	}
	redistest.Want(t, "time at which the stacks were taken", s.taken, taken)
	s.stack(first, time.Now())
	if s.taken == taken {
		t.Error("a stack from before the handler began was used")
	}
	if text := s.stack(1<<60, began); !strings.HasPrefix(text, "not known") {
		t.Errorf("no goroutine: %q", text)
	}
	if text := s.stack(0, began); !strings.HasPrefix(text, "not known") {
		t.Errorf("unknown goroutine: %q", text)
	}
}
