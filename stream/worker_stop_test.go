package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestCleanStopLeavesNothingPendingAndBurnsNoAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started := make(chan struct{}, 8)
	w, stop := r.start(WorkerConfig{Concurrency: 4, ShutdownTimeout: -1, Handler: func(ctx context.Context, m *Message) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	r.Ready("a", "b", "c", "d", "e", "f")
	for range 4 {
		<-started
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "released", w.Stats().Released, uint64(4))
	meta, _ := r.Client.Do(t.Context(), r.Client.B().Hgetall().Key(r.Keys.Meta).Build()).AsStrMap()
	redistest.Want(t, "members to deliver again", len(meta), 4)
	for member, text := range meta {
		if e, ok := lua.DecodeMeta(member, text); !ok || e.Attempt != 1 {
			t.Errorf("%s: attempt %d", e.ID, e.Attempt)
		}
	}
	consumers, err := r.Client.Do(t.Context(), r.Client.B().XinfoConsumers().Key(r.Keys.Stream).Group("g").Build()).ToArray()
	if err != nil || len(consumers) != 0 {
		t.Errorf("consumers left: %v, %v", consumers, err)
	}
}

func TestHandlersMayFinishDuringShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started, finish := make(chan struct{}), make(chan struct{})
	w, stop := r.start(WorkerConfig{Handler: func(ctx context.Context, m *Message) error {
		close(started)
		<-finish
		return ctx.Err()
	}})
	r.Ready("m")
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(finish)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "acknowledged", w.Stats().Acknowledged, uint64(1))
}

func TestHandlerThatIgnoresItsContextKeepsItsEntry(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	started, release := make(chan struct{}), make(chan struct{})
	var log strings.Builder
	_, stop := r.start(WorkerConfig{
		ShutdownTimeout: -1, CancelGrace: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Handler: func(context.Context, *Message) error {
			close(started)
			<-release
			return nil
		},
	})
	r.Ready("m")
	<-started
	err := stop()
	close(release)
	if !errors.Is(err, ErrAbandoned) {
		t.Errorf("Run: %v", err)
	}
	redistest.Want(t, "pending", r.Pending("g"), int64(1))
	if !strings.Contains(log.String(), "did not return") {
		t.Errorf("log does not say so: %s", log.String())
	}
}

// unseenEntries gives entries to a consumer whose reply nobody reads.
func (r *rig) unseenEntries(consumer string, n int) {
	r.T.Helper()
	if _, err := EnsureGroup(r.T.Context(), r.Client, r.Prefix, r.Queue, "g"); err != nil {
		r.T.Fatal(err)
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("m", i)
	}
	r.Ready(ids...)
	read := r.Client.B().Xreadgroup().Group("g", consumer).Count(int64(n)).Streams().Key(r.Keys.Stream).Id(">").Build()
	if err := r.Client.Do(r.T.Context(), read).Error(); err != nil {
		r.T.Fatal(err)
	}
	redistest.Want(r.T, "pending", r.Pending("g"), int64(n))
}

func TestStoppedWorkerReleasesWhatItNeverSaw(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 2*settleBatch + 50
	r.unseenEntries("me", n)
	w, err := NewWorker(WorkerConfig{
		Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g", Consumer: "me",
		Handler: func(context.Context, *Message) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.served[0].leave()
	redistest.Want(t, "released before it joined", w.Stats().Released, uint64(0))
	w.served[0].joined = true // the worker read the entries itself, and the connection broke
	w.served[0].leave()
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
	redistest.Want(t, "released", w.Stats().Released, uint64(n))
	meta, _ := r.Client.Do(t.Context(), r.Client.B().Hgetall().Key(r.Keys.Meta).Build()).AsStrMap()
	redistest.Want(t, "members to deliver again", len(meta), n)
	for member, text := range meta {
		if e, ok := lua.DecodeMeta(member, text); !ok || e.Attempt != 1 {
			t.Fatalf("%s: attempt %d", e.ID, e.Attempt)
		}
	}
}

func TestWorkerTakesUpWhatItWasGivenAndNeverSaw(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 2*extendBatch + 50
	r.unseenEntries("me", n)
	w, err := NewWorker(WorkerConfig{Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g",
		Consumer: "me", Concurrency: 2 * n, Handler: func(_ context.Context, m *Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s: attempt %d", m.ID, m.Attempt)
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.served[0].joined = true // the worker read the entries itself, and the connection broke
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		s := w.Stats()
		return s.Acknowledged == n && r.Pending("g") == 0, fmt.Sprintf("%+v", s)
	})
	redistest.Want(t, "delivered", w.Stats().Delivered, uint64(n))
	stop()
	redistest.Want(t, "Run", <-ended, nil)
}

// At each start, a worker with a fixed name used to extend entries that its predecessor had held, and handle them. A
// message that killed its worker did so for ever, as attempt 1, and a second worker of the name handled the first one's
// messages. Such entries are left to the reclaimer, also after a reconnect and by a clean stop.
func TestWorkerLeavesWhatItsNameHeldBeforeToTheReclaimer(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r, proxy := newRig(t, s), s.Proxy(t)
	r.unseenEntries("me", 3)
	got := make(chan *Message, 10)
	proxy.CutAfterForward(1, "XREADGROUP") // its reply holds fresh, which is taken up
	r.Do("XADD", r.Keys.Stream, "*", "id", "fresh", "payload", "", "attempt", "1", "due_ms", "1")
	w, stop := r.start(WorkerConfig{
		Client: r.Client, Blocking: proxy.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }), Consumer: "me",
		Handler: func(_ context.Context, m *Message) error { got <- m; return nil },
	})
	m := <-got
	redistest.Want(t, "delivered", fmt.Sprint(m.ID, " ", m.Attempt), "fresh 1")
	redistest.Want(t, "cuts", proxy.Cuts(), 1)
	redistest.Want(t, "stop", stop(), nil)
	redistest.Want(t, "deliveries", w.Stats().Delivered, uint64(1))
	redistest.Want(t, "left to the reclaimer", r.Pending("g"), int64(3))
	done, err := lua.Reclaim(t.Context(), r.Client, r.Keys, lua.ReclaimArgs{Group: "g", Attempts: DefaultPolicy().Attempts(),
		Limit: 10, MaxBytes: 1 << 20})
	redistest.Want(t, "reclaimed", fmt.Sprint(done.Retried, err), "3 <nil>")
	for _, meta := range r.Texts("HVALS", r.Keys.Meta) {
		if !strings.Contains(meta, `"attempt":"2"`) {
			t.Error("meta of a retry: ", meta)
		}
	}
}

// Regression: a worker that was stopped before it could join its group released the entries of its consumer name. The
// attempt that had killed the earlier worker did not count.
func TestAWorkerThatNeverJoinedReleasesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.unseenEntries("me", 3)
	w, err := NewWorker(WorkerConfig{
		Client: r.Client, Blocking: r.Blocking, Prefix: r.Prefix, Queue: r.Queue, Group: "g", Consumer: "me",
		Handler: func(context.Context, *Message) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	redistest.Want(t, "run", w.Run(ctx), nil)
	redistest.Want(t, "left to the reclaimer", r.Pending("g"), int64(3))
	redistest.Want(t, "consumers", len(queuetest.Array(t, r.Do("XINFO", "CONSUMERS", r.Keys.Stream, "g"))), 1)
}

// hungClient is a client whose calls block while hangs is set.
type hungClient struct {
	rueidis.Client
	hangs atomic.Bool
}

func (c *hungClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if c.hangs.Load() {
		<-ctx.Done()
		return rueidis.NewErrorResult(ctx.Err())
	}
	return c.Client.Do(ctx, command)
}

func (c *hungClient) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	if !c.hangs.Load() {
		return c.Client.DoMulti(ctx, commands...)
	}
	<-ctx.Done()
	all := make([]rueidis.RedisResult, len(commands))
	for i := range all {
		all[i] = rueidis.NewErrorResult(ctx.Err())
	}
	return all
}

// If a call hung when the worker was stopped for good, deliveries that waited behind it used to have no reported
// settlement, nor had a handler that returned later.
func TestEachDeliveryIsToldOfWhenTheWorkerIsStoppedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 8 // the first one is in flight, two are failures, and the last one returns too late
	client := &hungClient{Client: r.Client}
	started, finish, late, ended := make(chan struct{}, n), make(chan struct{}), make(chan struct{}), make(chan struct{})
	told, handled := make(chan Settlement, 2*n), atomic.Int64{}
	_, stop := r.start(WorkerConfig{
		Client: client, Blocking: r.Blocking, Concurrency: n, ShutdownTimeout: -1, CancelGrace: 50 * time.Millisecond,
		Settled: func(_ *Message, s Settlement) {
			told <- s
			if len(told) == n-1 {
				client.hangs.Store(false) // for the final leave
			}
		},
		Handler: func(_ context.Context, m *Message) error {
			started <- struct{}{}
			if m.ID == "m7" {
				<-late
				defer close(ended)
				return nil
			}
			<-finish
			if handled.Add(1) < 3 {
				return errors.New("failed")
			}
			return nil
		},
	})
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint("m", i))
	}
	r.Ready(ids...)
	for range n {
		<-started
	}
	client.hangs.Store(true)
	close(finish)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) { return handled.Load() == n-1, "handlers" })
	if err := stop(); !errors.Is(err, ErrAbandoned) {
		t.Error(err)
	}
	redistest.Want(t, "told", len(told), n-1)
	close(late)
	<-ended
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { return len(told) == n, "the late one" })
	for range n {
		redistest.Want(t, "settlement", <-told, Unknown)
	}
}
