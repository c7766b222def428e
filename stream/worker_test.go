package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// The handler must get the message as it was scheduled, including bytes that are no UTF-8. After the handler the entry
// is acknowledged, and freed because no other group needs it.
func TestMessageIsHandledAcknowledgedAndFreed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	got := make(chan *Message, 10)
	w, _ := r.start(WorkerConfig{Handler: func(_ context.Context, m *Message) error { got <- m; return nil }})
	r.Enqueue(lua.Item{ID: "a", When: lua.After(0), Payload: []byte("\x00\xff"),
		Meta: lua.EncodeMeta(map[string]string{"kind": "naïve"}, 0, time.Time{}), Dedup: lua.Refuse})
	m := <-got
	redistest.Want(t, "id", m.ID, "a")
	redistest.Want(t, "payload", string(m.Payload), "\x00\xff")
	redistest.Want(t, "header", m.Headers["kind"], "naïve")
	redistest.Want(t, "attempt", m.Attempt, 1)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		s := w.Stats()
		return s.Acknowledged == 1 && r.Length(r.Keys.Stream) == 0, fmt.Sprintf("%+v, %d entries", s, r.Length(r.Keys.Stream))
	})
}

// What a handler returns, or its panic, must decide whether the message gets a retry or becomes a dead letter.
func TestOutcomesDecideWhatHappensNext(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		outcome func() error
		dead    bool
		reason  string
		error   string
	}{
		{"error", func() error { return errors.New("no luck") }, false, "", "no luck"},
		{"retry after", func() error { return RetryAfter(time.Millisecond, errors.New("later")) }, false, "", "later"},
		{"wrapped retry after", func() error { return fmt.Errorf("outer: %w", RetryAfter(0, nil)) }, false, "",
			"retry requested"},
		{"dead letter", func() error { return DeadLetter(errors.New("never")) }, true, lua.ReasonDeadLetter, "never"},
		{"panic", func() error { panic("boom") }, false, "", "panic: boom"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t))
			r.Policy(map[string]string{"retry_min_ms": "1", "retry_max_ms": "2"})
			second := make(chan *Message, 1)
			r.start(WorkerConfig{Handler: func(_ context.Context, m *Message) error {
				if m.Attempt == 1 {
					return c.outcome()
				}
				second <- m
				return nil
			}})
			r.Ready("m")
			if c.dead {
				redistest.Eventually(t, 5*time.Second, func() (bool, string) {
					return r.Length(r.Keys.Dead) == 1,
						"no dead letter"
				})
				letters, _ := r.Client.Do(t.Context(),
					r.Client.B().Xrange().Key(r.Keys.Dead).Start("-").End("+").Build()).AsXRange()
				redistest.Want(t, "reason", letters[0].FieldValues[lua.FieldReason], c.reason)
				redistest.Want(t, "error", letters[0].FieldValues[lua.FieldError], c.error)
				redistest.Want(t, "group", letters[0].FieldValues[lua.FieldGroup], "g")
				redistest.Want(t, "pending", r.Pending("g"), int64(0))
				return
			}
			redistest.Eventually(t, 5*time.Second, func() (bool, string) {
				n, _ := r.Client.Do(t.Context(), r.Client.B().Zcard().Key(r.Keys.Due).Build()).AsInt64()
				return n == 1, "no retry scheduled"
			})
			r.DrainAll()
			m := <-second
			redistest.Want(t, "attempt", m.Attempt, 2)
			redistest.Want(t, "for", m.For, "g")
			if !strings.HasPrefix(m.Error, c.error) {
				t.Errorf("error: got %q, want it to start with %q", m.Error, c.error)
			}
		})
	}
}

// A retry is an entry for one group, but the workers of all groups read it. A worker of another group must acknowledge
// the entry without calling its handler.
func TestRetryOfAnotherGroupIsSkippedWithoutASlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"retry_min_ms": "1", "retry_max_ms": "2"})
	var mine, others atomic.Int32
	hold := make(chan struct{})
	w, _ := r.start(WorkerConfig{Group: "mine", Concurrency: 1, Handler: func(_ context.Context, m *Message) error {
		mine.Add(1)
		<-hold
		return nil
	}})
	r.start(WorkerConfig{Group: "others", Handler: func(_ context.Context, m *Message) error {
		if others.Add(1) == 1 {
			return errors.New("first time")
		}
		return nil
	}})
	defer close(hold)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		groups, _ := r.Client.Do(t.Context(), r.Client.B().XinfoGroups().Key(r.Keys.Stream).Build()).ToArray()
		return len(groups) == 2, "groups are not there"
	})
	r.Ready("m")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		d, err := lua.Drain(t.Context(), r.Client, r.Keys, 10, 1<<20)
		return others.Load() == 2, fmt.Sprint(others.Load(), d, err)
	})
	// The only slot of "mine" has a handler, so "mine" cannot read. Once the handler returns, "mine" skips the retry.
	hold <- struct{}{}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return w.Stats().Skipped == 1 && r.Length(r.Keys.Stream) == 0, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Want(t, "handler calls of the group that did not fail", mine.Load(), int32(1))
}

// A worker must read only as many messages as it has free slots. Otherwise messages wait in one worker while another is
// idle.
func TestWorkerNeverHoldsMoreThanItsSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const slots, messages = 3, 300
	var running, most atomic.Int32
	var done atomic.Int32
	w, _ := r.start(WorkerConfig{Concurrency: slots, Handler: func(context.Context, *Message) error {
		now := running.Add(1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		if n := r.Pending("g"); n > slots {
			t.Errorf("%d entries pending with %d slots", n, slots)
		}
		running.Add(-1)
		done.Add(1)
		return nil
	}})
	var ids []string
	for i := range messages {
		ids = append(ids, fmt.Sprint("m", i))
	}
	r.Ready(ids...)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == messages, fmt.Sprintf("%+v", w.Stats())
	})
	if m := most.Load(); m > slots || m < 2 {
		t.Errorf("handlers at once: %d with %d slots", m, slots)
	}
}

// The worker must extend the entry of a running handler, so that no bridge reclaims it, here for four visibility
// timeouts.
func TestSlowHandlerIsNotReclaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const visibility = 600 * time.Millisecond
	r.Policy(map[string]string{"visibility_ms": fmt.Sprint(visibility.Milliseconds())})
	started, finish := make(chan struct{}), make(chan struct{})
	w, _ := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		close(started)
		select {
		case <-finish:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}})
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return firstPartition(w).policy.Load().VisibilityTimeout == visibility, "policy not read"
	})
	r.Ready("slow")
	<-started
	for begin := time.Now(); time.Since(begin) < 4*visibility; {
		got, err := lua.Reclaim(t.Context(), r.Client, r.Keys, lua.ReclaimArgs{
			Group:    "g",
			Attempts: policy.Default().Attempts(),
			MinIdle:  visibility,
			Limit:    10,
			MaxBytes: 1 << 20,
		})
		if err != nil || got.Retried != 0 {
			t.Fatalf("reclaimed from a running handler: %+v, %v", got, err)
		}
	}
	close(finish)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1,
			fmt.Sprintf("%+v", w.Stats())
	})
}

// If another consumer claims the entry of a running handler, the handler must be cancelled with ErrLost, and its result
// must not settle the entry.
func TestHandlerOfALostDeliveryIsCancelledAndHasNoEffect(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"visibility_ms": "900"})
	cause := make(chan error, 1)
	entry := make(chan string, 1)
	w, _ := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		entry <- m.EntryID
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	}})
	r.Ready("m")
	id := <-entry
	if err := r.Client.Do(t.Context(),
		r.Client.B().Xclaim().Key(r.Keys.Stream).Group("g").Consumer("thief").MinIdleTime("0").Id(id).Build()).
		Error(); err != nil {
		t.Fatal(err)
	}
	if got := <-cause; !errors.Is(got, ErrLost) {
		t.Errorf("cause: %v", got)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return w.Stats().Lost == 1, fmt.Sprintf("%+v", w.Stats()) })
	redistest.Want(t, "pending for the new owner", r.Pending("g"), int64(1))
}

// A worker that cannot extend its entries for a visibility timeout may have lost them, so its handlers must be
// cancelled with ErrUnreachable.
func TestUnreachableServerCancelsHandlersAfterAVisibilityTimeout(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Policy(map[string]string{"visibility_ms": "600"})
	cause := make(chan error, 1)
	started := make(chan struct{})
	w, stop := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		if m.Attempt == 1 && len(cause) == 0 {
			close(started)
			<-ctx.Done()
			cause <- context.Cause(ctx)
		}
		return nil
	}})
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return firstPartition(w).policy.Load().VisibilityTimeout == 600*time.Millisecond, "policy not read"
	})
	r.Ready("m")
	<-started
	s.Pause()
	got := <-cause
	s.Resume()
	if !errors.Is(got, ErrUnreachable) {
		t.Errorf("cause: %v", got)
	}
	redistest.Eventually(t, 15*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1,
			fmt.Sprintf("%+v", w.Stats())
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// waitForID receives IDs until the given one comes.
func waitForID(got <-chan string, id string) {
	for seen := ""; seen != id; {
		seen = <-got
	}
}

// If the group is destroyed, or the server loses all data, the worker must create the group again at the beginning of
// the stream. Otherwise it would miss the messages that came meanwhile.
func TestLostGroupIsCreatedAgainAtZeroEveryTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	got := make(chan string, 10)
	r.start(WorkerConfig{Handler: func(_ context.Context, m *Message) error { got <- m.ID; return nil }})
	r.Ready("m0")
	redistest.Want(t, "delivered", <-got, "m0")
	for i := 1; i <= 3; i++ {
		if err := r.Client.Do(t.Context(),
			r.Client.B().XgroupDestroy().Key(r.Keys.Stream).Group("g").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint("m", i)
		r.Ready(id)
		waitForID(got, id) // earlier entries that were not freed yet are delivered again
		// Delete the registry and the stream, as if the server had lost all data.
		for _, key := range []string{lua.NewGlobals(r.Prefix).Queues, r.Keys.Stream} {
			if err := r.Client.Do(t.Context(), r.Client.B().Del().Key(key).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		redistest.Eventually(t, 5*time.Second, func() (bool, string) {
			registered, err := r.Client.Do(t.Context(),
				r.Client.B().Hexists().Key(lua.NewGlobals(r.Prefix).Queues).Field(r.Queue).Build()).AsBool()
			return registered, fmt.Sprint("the queue is not registered: ", err)
		})
		id = fmt.Sprint("n", i)
		r.Ready(id)
		waitForID(got, id)
	}
}

// If the connection breaks between the server's read and its reply, the worker holds an entry that it has never seen.
// It must fetch and handle this entry, and the lost reply must not count as an attempt.
func TestDeliveredButNeverSeenIsTakenUpWithoutBurningAnAttempt(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	proxy := s.Proxy(t)
	got := make(chan *Message, 10)
	cfg := WorkerConfig{
		Client: r.Client, Blocking: proxy.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }),
		Handler: func(_ context.Context, m *Message) error { got <- m; return nil },
	}
	proxy.CutAfterForward(1, "XREADGROUP")
	w, _ := r.start(cfg)
	r.Ready("m")
	m := <-got
	redistest.Want(t, "cuts", proxy.Cuts(), 1)
	redistest.Want(t, "attempt", m.Attempt, 1)
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return w.Stats().Acknowledged == 1 && r.Length(r.Keys.Stream) == 0, fmt.Sprintf("%+v", w.Stats())
	})
	redistest.Want(t, "retries scheduled", w.Stats().Retried, uint64(0))
}

// The error must name all wrong fields at once, so that a user does not mend them one by one.
func TestWorkerConfigNamesEveryFieldThatIsWrong(t *testing.T) {
	_, err := NewWorker(WorkerConfig{Queue: "a b", Group: "", Concurrency: -1})
	for _, text := range []string{"worker: redis", "handler", `queue "a b"`, "group", `concurrency "-1"`,
		"must be between 1 and"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error does not name %q: %v", text, err)
		}
	}
}

// Settled must report how each delivery ended: retried, dead, acknowledged, skipped because the entry is for another
// group, or lost because another consumer settled the entry first.
func TestSettledTellsHowEachDeliveryEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Policy(map[string]string{"retry_min_ms": "3600000", "retry_max_ms": "3600000"})
	type settled struct{ id, how string }
	got := make(chan settled, 20)
	leave := make(chan struct{})
	r.start(WorkerConfig{
		Settled: func(m *Message, s Settlement) { got <- settled{m.ID, string(s)} },
		Handler: func(ctx context.Context, m *Message) error {
			switch m.ID {
			case "fails":
				return errors.New("not today")
			case "dies":
				return DeadLetter(errors.New("never"))
			case "taken":
				<-leave
			}
			return nil
		},
	})
	r.Do("XADD", r.Keys.Stream, "*", "id", "foreign", "payload", "", "attempt", "2", "due_ms", "1", "for", "another")
	r.Ready("works", "fails", "dies", "taken")
	told := map[string]string{}
	for range 4 {
		s := <-got
		told[s.id] = s.how
	}
	redistest.Want(t, "settlements", fmt.Sprint(told), "map[dies:dead fails:retried foreign:skipped works:acknowledged]")

	// Another consumer takes the entry out while the handler runs.
	held := r.Do("XPENDING", r.Keys.Stream, "g", "-", "+", "10")
	rows, err := held.ToArray()
	if err != nil || len(rows) != 1 {
		t.Fatalf("pending: %v, %v", rows, err)
	}
	cells, _ := rows[0].ToArray()
	entry, _ := cells[0].ToString()
	r.Xack("g", entry)
	close(leave)
	redistest.Want(t, "settlement", <-got, settled{"taken", "lost"})
}

// After a lost reply Settled must report Unknown:
//
//  1. The server executes the acknowledgement, and the reply is lost.
//  2. The worker repeats the call, which finds nothing pending. Either the first call settled the entry, or another
//     consumer did.
func TestSettledIsUnknownWhenTheReplyWasLost(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r := newRig(t, s)
	p := s.Proxy(t)
	got := make(chan Settlement, 1)
	leave := make(chan struct{})
	started := make(chan struct{})
	r.start(WorkerConfig{
		Client: p.Client(t), Blocking: r.Blocking,
		Settled: func(_ *Message, s Settlement) { got <- s },
		Handler: func(context.Context, *Message) error { close(started); <-leave; return nil },
	})
	r.Ready("m")
	<-started
	// Load the script of Ack, so that the server executes the EVALSHA whose reply is cut off.
	if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "g", nil); err != nil {
		t.Fatal(err)
	}
	p.CutAfterForward(2, "EVALSHA") // two, because one of them may be the worker's first registration of its queue
	close(leave)
	redistest.Want(t, "settlement", <-got, Unknown)
}
