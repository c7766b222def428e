package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) {
	if part := os.Getenv(childPart); part != "" {
		os.Exit(runChild(part))
	}
	redistest.SideBySide(6) // most tests wait, and tests that measure are not parallel
	code := redistest.Run(m)
	_ = os.RemoveAll(commandDir)
	os.Exit(code)
}

// stack is duestream on one server, with a prefix and a queue that no other test uses. Its methods run clients, workers
// and bridges in this process.
type stack struct {
	t      testing.TB
	server *redistest.Server
	redis  *bridge.Redis
	client *bridge.Client
	prefix string
	queue  string
	log    *slog.Logger
	ledger *redistest.Ledger
	logged map[string]int // by path of a log file: how many of its lines are in the ledger; see readLog
}

// operator returns an operator's handle on the queues of the stack.
func (s *stack) operator() *admin.Admin {
	s.t.Helper()
	op, err := admin.New(s.redis, s.prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	return op
}

func newStack(t testing.TB, server *redistest.Server) *stack {
	t.Helper()
	s := &stack{t: t, server: server, prefix: server.Prefix(t), queue: redistest.Queue(t), ledger: &redistest.Ledger{},
		logged: map[string]int{}}
	level := slog.LevelError + 1
	if os.Getenv("DUESTREAM_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	s.redis = s.dial(server.URL())
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: s.redis, Prefix: s.prefix, Logger: s.log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s.client = client
	return s
}

func (s *stack) dial(url string) *bridge.Redis {
	s.t.Helper()
	r, err := bridge.Dial(context.Background(), url)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(r.Close)
	return r
}

func (s *stack) keys() lua.Keys { return lua.NewKeys(s.prefix, s.queue) }

// bridge runs a bridge until the test ends or the returned function is called.
func (s *stack) bridge(defaults bridge.Policy) (stop func()) {
	s.t.Helper()
	b, err := bridge.NewBridge(bridge.Config{Redis: s.redis, Prefix: s.prefix, Defaults: defaults, Logger: s.log,
		AnyServer: true})
	if err != nil {
		s.t.Fatal(err)
	}
	stop = s.run("bridge", b.Run)
	// Wait until the bridge has written the defaults, because a worker reads them when it starts.
	redistest.Eventually(s.t, 10*time.Second, func() (bool, string) {
		return s.number("EXISTS", s.prefix+":defaults") == 1, "no defaults written"
	})
	return stop
}

// worker runs a worker until the test ends or stop is called. It records each delivery in the ledger, and then calls
// handle; nil accepts all messages.
func (s *stack) worker(group string, concurrency int, handle bridge.Handler) (w *bridge.Worker, stop func()) {
	s.t.Helper()
	w, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: s.redis, Prefix: s.prefix, Queue: s.queue, Group: group, Concurrency: concurrency, Logger: s.log,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			s.ledger.Delivered(group, m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
			if handle == nil {
				return nil
			}
			return handle(ctx, m)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return w, s.run("worker", w.Run)
}

// run calls a Run method until the test ends or stop is called. It fails the test if Run returns an error or does not
// end.
func (s *stack) run(what string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				s.t.Errorf("%s: %v", what, err)
			}
		case <-time.After(30 * time.Second):
			s.t.Errorf("%s did not stop", what)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// groups creates groups in the queue. Tests call it before they send anything, so that each group gets everything.
func (s *stack) groups(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if _, err := bridge.CreateGroup(context.Background(), s.redis, s.prefix, s.queue, name); err != nil {
			s.t.Fatal(err)
		}
	}
}

// schedule sends n messages, the i-th with the delay delay(i), and records them in the ledger. Their IDs are the given
// ID followed by six digits.
func (s *stack) schedule(n int, id string, delay func(i int) time.Duration) {
	s.t.Helper()
	batch := make([]bridge.NewMessage, n)
	for i := range batch {
		name := fmt.Sprintf("%s%06d", id, i)
		batch[i] = bridge.NewMessage{ID: name, Payload: []byte("payload of " + name), Delay: delay(i)}
	}
	s.send(batch)
}

// send schedules a batch, in which no message may be refused, and records the messages in the ledger.
func (s *stack) send(batch []bridge.NewMessage) {
	s.t.Helper()
	results, err := s.client.ScheduleBatch(context.Background(), s.queue, batch)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			s.t.Fatalf("message %d: %v", i, r.Err)
		}
		s.ledger.Sent(r.ID, r.Due.UnixMilli())
	}
}

// record records the result of scheduling a message in the ledger.
func (s *stack) record(id string, receipt bridge.Receipt, err error) {
	switch {
	case err == nil:
		s.ledger.Sent(id, receipt.Due.UnixMilli())
	case errors.Is(err, bridge.ErrDuplicate): // the client repeated its call, and the first try had been accepted
		s.ledger.Sent(id, 0)
	default:
		s.ledger.MaybeSent(id, 0)
	}
}

// spreadOver returns a function of delays that spreads messages over d, in a mixed order: 7919 is a prime number, so
// 1,000 successive numbers give 1,000 different delays.
func spreadOver(d time.Duration) func(int) time.Duration {
	return func(i int) time.Duration { return time.Duration(i*7919%1000) * d / 1000 }
}

func (s *stack) do(cmd func(c rueidis.Client) rueidis.Completed) rueidis.RedisResult {
	return s.redis.Client.Do(context.Background(), cmd(s.redis.Client))
}

// raw sends any command.
func (s *stack) raw(args ...string) rueidis.RedisResult {
	return s.do(func(c rueidis.Client) rueidis.Completed { return c.B().Arbitrary(args...).Build() })
}

// number sends a command and returns its integer reply, or 0 if there is none.
func (s *stack) number(args ...string) int64 {
	n, _ := s.raw(args...).AsInt64()
	return n
}

// empty reports whether nothing of the queue is left: no scheduled member, entry, pending entry, payload or metadata.
// If something is left, the text says what. It looks twice, because one look could miss a message that moves from the
// stream back to the schedule between two commands.
func (s *stack) empty(groups ...string) (bool, string) {
	ok, left := s.look(groups)
	if ok {
		return s.look(groups)
	}
	return ok, left
}

func (s *stack) look(groups []string) (bool, string) {
	k := s.keys()
	left := map[string]int64{
		"due": s.number("ZCARD", k.Due), "payload": s.number("HLEN", k.Payload), "meta": s.number("HLEN", k.Meta),
		"stream": s.number("XLEN", k.Stream),
	}
	for _, g := range groups {
		if pending, err := s.raw("XPENDING", k.Stream, g).ToArray(); err == nil {
			left["pending of "+g], _ = pending[0].AsInt64()
		}
	}
	for _, n := range left {
		if n != 0 {
			return false, fmt.Sprint(left)
		}
	}
	return true, ""
}

// awaitSettled waits until every group has got everything and nothing of the queue is left. Then it checks the ledger.
func (s *stack) awaitSettled(timeout time.Duration, groups ...string) redistest.Result {
	s.t.Helper()
	redistest.Eventually(s.t, timeout, func() (bool, string) {
		if r := s.ledger.Summary(groups...); r.Lost > 0 {
			return false, fmt.Sprintf("%+v", r)
		}
		return s.empty(groups...)
	})
	return s.ledger.Check(s.t, groups...)
}

// quick returns a policy whose timeouts and delays suit a test that waits for them.
func quick() bridge.Policy {
	return bridge.Policy{VisibilityTimeout: time.Second, MaxAttempts: 10, RetryMin: 20 * time.Millisecond,
		RetryMax: 200 * time.Millisecond}
}

// patient returns the policy of quick with a visibility timeout of a minute. It is for tests in which nothing dies and
// a second delivery is a failure: a worker that a busy machine delays keeps its deliveries.
func patient() bridge.Policy {
	policy := quick()
	policy.VisibilityTimeout = time.Minute
	return policy
}
