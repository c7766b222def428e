package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// A stopped worker must return the messages of its cancelled handlers, so that another worker gets them at once. The
// attempt that the stop interrupted must not count.
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

// Within ShutdownTimeout a stop must not cancel the contexts of running handlers.
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

// If a handler ignores the end of its context, the stop must leave its entry pending: another worker must not get the
// message while this handler still runs.
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

// unseenEntries makes n messages ready, and lets a consumer of the group g read them. The reply is ignored, as if it
// had been lost: the entries are pending, and no worker has seen them.
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

// A stopped worker must also release entries that it was given in a reply that was lost. n needs more than two calls.
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
	firstPartition(w).leave()
	redistest.Want(t, "released before it joined", w.Stats().Released, uint64(0))
	firstPartition(w).joined = true // as if this worker had read the entries, and had lost the reply
	firstPartition(w).leave()
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

// A running worker must fetch and handle entries that it was given in a reply that was lost. n needs more than two
// calls.
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
	firstPartition(w).joined = true // as if this worker had read the entries, and had lost the reply
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

// Regression: at each start, a worker with a fixed name took over the entries of an earlier worker of that name, and
// handled them. So a message that killed its worker did so for ever, always as attempt 1, and a second worker of the
// same name handled the messages of the first. A worker must leave such entries to the reclaimer, also after a
// reconnect and at a clean stop.
func TestReclaimerGetsEntriesOfAnEarlierWorkerOfTheName(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r, proxy := newRig(t, s), s.Proxy(t)
	r.unseenEntries("me", 3)
	got := make(chan *Message, 10)
	// The first read is given the message "fresh", and its reply is lost. The worker fetches this message after it has
	// connected again.
	proxy.CutAfterForward(1, "XREADGROUP")
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
	done, err := lua.Reclaim(t.Context(), r.Client, r.Keys, lua.ReclaimArgs{
		Group:    "g",
		Attempts: policy.Default().Attempts(),
		Limit:    10,
		MaxBytes: 1 << 20,
	})
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

// Regression: if a settling call hung when the worker was stopped for good, no settlement was reported for deliveries
// that waited behind that call, or whose handler returned later.
func TestEachSettlementIsReportedWhenTheWorkerIsStoppedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	// The first settling call hangs. Two handlers fail. The handler of m7 returns after the worker has ended.
	const n = 8
	client := &hungClient{Client: r.Client}
	started, finish, late, ended := make(chan struct{}, n), make(chan struct{}), make(chan struct{}), make(chan struct{})
	reported, handled := make(chan Settlement, 2*n), atomic.Int64{}
	_, stop := r.start(WorkerConfig{
		Client: client, Blocking: r.Blocking, Concurrency: n, ShutdownTimeout: -1, CancelGrace: 50 * time.Millisecond,
		Settled: func(_ *Message, s Settlement) {
			reported <- s
			if len(reported) == n-1 {
				client.hangs.Store(false) // so that the worker can leave its group at the end
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
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return handled.Load() == n-1, "not all handlers but the last have returned"
	})
	if err := stop(); !errors.Is(err, ErrAbandoned) {
		t.Error(err)
	}
	redistest.Want(t, "reported", len(reported), n-1)
	close(late)
	<-ended
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(reported) == n, "the settlement of the late handler is not reported"
	})
	for range n {
		redistest.Want(t, "settlement", <-reported, Unknown)
	}
}

// brokenReads is a Blocking client whose reads fail without reaching the server.
type brokenReads struct {
	rueidis.Client
	failed atomic.Int64 // Unix ns of the last failed read
}

func (c *brokenReads) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] == "XREADGROUP" {
		c.failed.Store(time.Now().UnixNano())
		return rueidis.NewErrorResult(io.EOF)
	}
	return c.Client.Do(ctx, cmd)
}

// beforePending is a client that calls run before each XPENDING.
type beforePending struct {
	rueidis.Client
	run func()
}

func (c beforePending) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if len(cmds) > 0 && cmds[0].Commands()[0] == "XPENDING" {
		c.run()
	}
	return c.Client.DoMulti(ctx, cmds...)
}

// onLine is a log that calls a function at each line with a text.
type onLine struct {
	text string
	call func()
}

func (l onLine) Write(line []byte) (int, error) {
	if strings.Contains(string(line), l.text) {
		l.call()
	}
	return len(line), nil
}

// Regression: a worker was stopped right after a failed read. The worker looked at once for entries whose reply it had
// missed, and the server executed the read after that look. So the entry waited for the visibility timeout, and lost an
// attempt. Here the test executes the failed read itself, lateRead after its failure, like a server that was busy.
func TestAStopAfterAFailedReadReleasesWhatTheServerGivesLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("m")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reads := &brokenReads{Client: r.Blocking}
	var executed sync.Once
	client := beforePending{r.Client, func() {
		if ctx.Err() != nil && time.Since(time.Unix(0, reads.failed.Load())) >= lateRead {
			executed.Do(func() { r.Take("g", "me", 1) })
		}
	}}
	w, err := NewWorker(WorkerConfig{
		Client: client, Blocking: reads, Prefix: r.Prefix, Queue: r.Queue, Group: "g", Consumer: "me",
		Logger:  slog.New(slog.NewTextHandler(onLine{"is failing", stop}, nil)),
		Handler: func(context.Context, *Message) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "Run", w.Run(ctx), nil)
	redistest.Want(t, "the stop cut off a read", firstPartition(w).cutOff, false)
	redistest.Want(t, "released", w.Stats().Released, uint64(1))
	redistest.Want(t, "pending", r.Pending("g"), int64(0))
}
