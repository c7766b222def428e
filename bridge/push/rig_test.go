package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// testKey is a valid signing key.
const testKey = "whsec_ZHVlc3RyZWFtLXRlc3Qtc2VjcmV0LTMyLWJ5dGVzISE="

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// request is a request that a receiver got.
type request struct {
	http.Header
	body []byte
}

// receiver is a target that records its requests, and answers with a given function.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	seen []request
}

// newReceiver starts a receiver. answer writes the answer to the n-th request, from 1; nil = 200 without a body.
func newReceiver(t *testing.T, answer func(n int, r request, w http.ResponseWriter)) *receiver {
	t.Helper()
	v := &receiver{}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		one := request{r.Header, body}
		v.mu.Lock()
		v.seen = append(v.seen, one)
		n := len(v.seen)
		v.mu.Unlock()
		if answer != nil {
			answer(n, one, w)
		}
	}))
	t.Cleanup(v.Close)
	return v
}

// requests returns all requests so far.
func (v *receiver) requests() []request {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]request{}, v.seen...)
}

// to returns a target for group g of queue q, with a URL on this machine and the key testKey.
func to(url string) Target {
	return Target{Queue: "q", Group: "g", URL: url, AllowHTTP: true, Keys: []string{testKey}, Networks: loopback}.WithDefaults()
}

// message returns a message in the form in which a handler gets it.
func message(id, payload string) *bridge.Message {
	return &bridge.Message{ID: id, Payload: []byte(payload), Attempt: 1, Queue: "q", Group: "g"}
}

// rig is a test's own key prefix with a running bridge. Its Redis is the shared server, or a server that the test has
// started.
type rig struct {
	t      *testing.T
	r      *bridge.Redis
	prefix string
	store  *Store
	client *bridge.Client
	log    *queuetest.LogBook // of all Runners
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, redistest.Shared(t))
}

func newRigOn(t *testing.T, server *redistest.Server) *rig {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	g := &rig{t: t, r: r, prefix: server.Prefix(t), log: new(queuetest.LogBook)}
	g.store = NewStore(r.Client, g.prefix)
	if g.client, err = bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: g.prefix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.client.Close() })
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: g.prefix, AnyServer: true, Defaults: bridge.Policy{
		VisibilityTimeout: 10 * time.Second, MaxAttempts: 3, RetryMin: 10 * time.Millisecond, RetryMax: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	g.start(b.Run)
	return g
}

// start calls run with a context that ends with the test, or when stop is called. stop waits for run.
func (g *rig) start(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			g.t.Error(err)
		}
	})
	g.t.Cleanup(stop)
	return stop
}

// run starts a Runner, which stops with the test or when stop is called.
func (g *rig) run() (stop func()) {
	g.t.Helper()
	r, err := NewRunner(Config{Redis: g.r, Prefix: g.prefix, LookInterval: 20 * time.Millisecond, Logger: g.log.Logger()})
	if err != nil {
		g.t.Fatal(err)
	}
	return g.start(r.Run)
}

// set stores a target, and returns what that changed.
func (g *rig) set(t Target) Change {
	g.t.Helper()
	c, err := g.store.Set(g.t.Context(), t)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// schedule schedules messages. It fails the test if one is refused.
func (g *rig) schedule(queue string, messages ...bridge.NewMessage) {
	g.t.Helper()
	results, err := g.client.ScheduleBatch(g.t.Context(), queue, messages)
	for _, r := range results {
		if r.Err != nil {
			err = r.Err
		}
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// schedulePoison schedules all messages in one batch. The first poison of them have the payload "poison", the others
// "well".
func (g *rig) schedulePoison(queue string, poison, all int) {
	g.t.Helper()
	batch := make([]bridge.NewMessage, all)
	for i := range batch {
		payload := "well"
		if i < poison {
			payload = "poison"
		}
		batch[i] = bridge.NewMessage{ID: fmt.Sprintf("m%03d", i), Payload: []byte(payload)}
	}
	g.schedule(queue, batch...)
}

// dead returns the dead letters of a queue by message ID.
func (g *rig) dead(queue string) map[string]lua.Letter {
	g.t.Helper()
	key := lua.NewKeys(g.prefix, queue).Dead
	found, err := g.r.Client.Do(g.t.Context(), g.r.Client.B().Xrange().Key(key).Start("-").End("+").Build()).AsXRangeSlices()
	if err != nil {
		g.t.Fatal(err)
	}
	all := map[string]lua.Letter{}
	for _, one := range found {
		l := lua.ParseLetter(one.ID, one.FieldValues)
		all[l.ID] = l
	}
	return all
}

// left returns how many messages of a queue are scheduled, ready or pending.
func (g *rig) left(queue string) int64 {
	k := lua.NewKeys(g.prefix, queue)
	// Count both atomically, because a retry moves from the stream to the schedule.
	return queuetest.Integer(g.t, g.r.Client, "EVAL", "return redis.call('ZCARD', KEYS[1]) + redis.call('XLEN', KEYS[2])", "2",
		k.Due, k.Stream)
}

// pending returns how many messages of a queue are pending.
func (g *rig) pending(queue string) int {
	g.t.Helper()
	held, err := g.r.Client.Do(g.t.Context(), g.r.Client.B().Xpending().Key(lua.NewKeys(g.prefix, queue).Stream).Group("g").
		Start("-").End("+").Count(100).Build()).ToArray()
	if err = lua.Classify("XPENDING", err); err != nil && !errors.Is(err, lua.ErrNoGroup) {
		g.t.Fatal(err)
	}
	return len(held)
}

// awaitDone waits until a queue holds only dead letters.
func (g *rig) awaitDone(queue string) {
	g.t.Helper()
	redistest.Eventually(g.t, 20*time.Second, func() (bool, string) {
		n := g.left(queue)
		return n == 0, fmt.Sprint(n, " messages are left")
	})
}

// setMaxAttempts sets max_attempts in the policy of a queue.
func (g *rig) setMaxAttempts(queue string, n int) {
	g.t.Helper()
	queuetest.Do(g.t, g.r.Client, "HSET", lua.NewKeys(g.prefix, queue).Policy, "max_attempts", fmt.Sprint(n))
}
