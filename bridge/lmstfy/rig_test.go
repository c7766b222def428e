package lmstfy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	official "github.com/bitleak/lmstfy/client"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
)

// rig is a listening gateway with lmstfy's API, and lmstfy's own client for the namespace ns. newRig also runs a
// bridge.
type rig struct {
	t         *testing.T
	r         *bridge.Redis
	op        *admin.Admin
	prefix    string
	token     string       // for all queues of the namespace ns
	base      string       // URL of the gateway that do asks, without a path
	handler   http.Handler // of the gateway that was started last
	transport *http.Transport
	answering atomic.Int64 // requests in progress at all gateways of the rig
	*official.LmstfyClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	server := redistest.Shared(t)
	rig := newRigAt(t, server.URL(), server.Prefix(t))
	rig.bridge(rig.r)
	return rig
}

// bridge runs a bridge until the end of the test.
func (r *rig) bridge(redis *bridge.Redis) {
	r.t.Helper()
	b, err := bridge.NewBridge(bridge.Config{Redis: redis, Prefix: r.prefix, AnyServer: true})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	r.t.Cleanup(func() { stop(); running.Wait() })
}

func newRigAt(t *testing.T, url, prefix string) *rig {
	t.Helper()
	return newRigOf(t, dial(t, url), prefix)
}

func dial(t *testing.T, url string) *bridge.Redis {
	t.Helper()
	redis, err := bridge.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	return redis
}

// faulty is a client whose commands a test may delay or refuse.
type faulty struct {
	rueidis.Client
	mu sync.Mutex
	// Called before each command, which fails with its error; nil = none.
	before func(ctx context.Context, words []string) error
}

// newFaultyRig returns a rig whose gateways use a faulty client. Its bridge uses another one.
func newFaultyRig(t *testing.T) (*rig, *faulty) {
	t.Helper()
	server := redistest.Shared(t)
	redis := dial(t, server.URL())
	f := &faulty{Client: redis.Client}
	redis.Client = f
	rig := newRigOf(t, redis, server.Prefix(t))
	rig.bridge(dial(t, server.URL()))
	return rig, f
}

// set sets the function that is called before each command.
func (f *faulty) set(before func(ctx context.Context, words []string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// callBefore calls before with a command.
func (f *faulty) callBefore(ctx context.Context, cmd rueidis.Completed) error {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, cmd.Commands())
}

func (f *faulty) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if err := f.callBefore(ctx, cmd); err != nil {
		return rueidis.NewErrorResult(err)
	}
	return f.Client.Do(ctx, cmd)
}

func (f *faulty) DoMulti(ctx context.Context, all ...rueidis.Completed) []rueidis.RedisResult {
	for _, cmd := range all {
		if err := f.callBefore(ctx, cmd); err != nil {
			return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(err)}, len(all))
		}
	}
	return f.Client.DoMulti(ctx, all...)
}

func newRigOf(t *testing.T, redis *bridge.Redis, prefix string) *rig {
	t.Helper()
	rig := &rig{t: t, r: redis, prefix: prefix}
	rig.op = redistest.Must(admin.New(rig.r, prefix))
	rig.token = rig.allow("ns", access.Verbs(), "ns:*")
	rig.base, _ = rig.listen()
	host, portText, _ := net.SplitHostPort(strings.TrimPrefix(rig.base, "http://"))
	port := 0
	for _, digit := range portText {
		port = 10*port + int(digit-'0')
	}
	rig.transport = &http.Transport{}
	t.Cleanup(rig.transport.CloseIdleConnections)
	rig.LmstfyClient = official.NewLmstfyWithClient(&http.Client{Transport: rig.transport}, host, port, "ns", rig.token)
	return rig
}

// listen starts another gateway, which runs until stop is called or the test ends. Its Timeout is 5 s if none is given.
func (r *rig) listen(timeout ...time.Duration) (base string, stop func()) {
	r.t.Helper()
	store, err := access.Open(access.Config{Client: r.r.Client, Prefix: r.prefix})
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(r.t.Output(), nil))
	g, err := gateway.New(gateway.Config{Redis: r.r, Prefix: r.prefix, Access: store, Logger: log,
		Timeout: append(timeout, 5*time.Second)[0]})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := lmstfy.Mount(g); err != nil {
		r.t.Fatal(err)
	}
	go func() { _ = g.Run(context.Background()) }() // until Close
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	s := gateway.NewServer(g)
	handler := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.answering.Add(1)
		defer r.answering.Add(-1)
		handler.ServeHTTP(w, req)
	})
	r.handler = s.Handler
	go func() { _ = s.Serve(socket) }()
	stop = sync.OnceFunc(func() {
		_ = s.Close()
		_ = g.Close()
	})
	r.t.Cleanup(stop)
	return "http://" + socket.Addr().String(), stop
}

// allow stores a token and returns its secret.
func (r *rig) allow(name string, verbs []access.Verb, queues ...string) string {
	r.t.Helper()
	secret, err := r.op.AddToken(r.t.Context(), access.Token{Name: name, Verbs: verbs, Queues: queues})
	if err != nil {
		r.t.Fatal(err)
	}
	return secret
}

type answer struct {
	status int
	kind   string // Content-Type
	body   string
	header http.Header
}

// do sends a request without lmstfy's client. Headers are "Name: value".
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Token", r.token)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if req.Header.Del(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	res, err := r.transport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header.Get("Content-Type"), string(text), res.Header}
}

// publish publishes a job with lmstfy's client, and returns its ID. ttl and delay are in seconds.
func (r *rig) publish(queue, data string, ttl uint32, tries uint16, delay uint32) string {
	r.t.Helper()
	//lint:ignore SA1019 every call is tried
	id, err := r.Publish(queue, []byte(data), ttl, tries, delay)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// get consumes a job, and waits for one for at most ten seconds. ttr is the job's visibility timeout in seconds.
func (r *rig) get(queue string, ttr uint32) *official.Job {
	r.t.Helper()
	job, err := r.Consume(queue, ttr, 10)
	if err != nil || job == nil {
		r.t.Fatalf("%s: no job, %v", queue, err)
	}
	return job
}

// none checks that a queue has no job that is ready: it gives none, its size is 0, and a peek finds none.
func (r *rig) none(queue string) {
	r.t.Helper()
	if job, err := r.Consume(queue, 10, 0); job != nil || err != nil {
		r.t.Errorf("%s gives %+v, %v", queue, job, err)
	}
	if n, err := r.QueueSize(queue); n != 0 || err != nil {
		r.t.Errorf("size of %s: %d, %v", queue, n, err)
	}
	if job, err := r.PeekQueue(queue); job != nil || err != nil {
		r.t.Errorf("peek of %s: %+v, %v", queue, job, err)
	}
}

// dead waits until a queue has the wanted number of dead jobs, and returns the oldest.
func (r *rig) dead(queue string, want int) (head string) {
	r.t.Helper()
	redistest.Eventually(r.t, 20*time.Second, func() (bool, string) {
		n, oldest, err := r.PeekDeadLetter(queue)
		if err != nil {
			return false, err.Error()
		}
		head = oldest
		return n == want, "dead letters of " + queue
	})
	return head
}

// ok fails the test if a call of lmstfy's client failed.
func (r *rig) ok(err *official.APIError) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}
