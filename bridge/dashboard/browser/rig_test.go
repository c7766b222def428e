package browser

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// path is where the dashboard is, on each of its addresses.
const path = "/ops/queues/"

// rig is a dashboard for a prefix of a Redis, with the addresses at which viewers reach it.
type rig struct {
	*queuetest.Rig // Do and others work on Redis directly

	op     *admin.Admin
	client *bridge.Client
	log    *queuetest.LogBook // of the dashboard and its audit

	stripping string // address of a proxy with TLS that removes path; tabs use it unless they are told otherwise
	passing   string // address of a proxy with TLS that leaves path as it is
	direct    string // address without a proxy and without TLS
	tabs      int    // opened so far
	streams   int    // open streams of updates; see streamsAre
	mu        sync.Mutex
}

// newRig starts a dashboard for a new prefix of the shared Redis.
func newRig(t *testing.T) *rig {
	t.Helper()
	redistest.Long(t)
	return newRigOn(t, redistest.Shared(t), nil)
}

// newRigOn starts a dashboard on a server. change may change its configuration; nil changes nothing.
func newRigOn(t *testing.T, s *redistest.Server, change func(*dashboard.Config)) *rig {
	t.Helper()
	redistest.Long(t)
	return newRigOf(queuetest.New(t, s), change)
}

// newRigOf starts a dashboard for the prefix of a rig. change may change its configuration; nil changes nothing.
func newRigOf(on *queuetest.Rig, change func(*dashboard.Config)) *rig {
	t := on.T
	t.Helper()
	r := &rig{Rig: on, log: &queuetest.LogBook{}}
	conn, err := bridge.Dial(t.Context(), on.Server.URL())
	must(t, err)
	r.op, err = admin.New(conn, r.Prefix)
	must(t, err)
	r.client, err = bridge.NewClient(bridge.ClientConfig{Redis: conn, Prefix: r.Prefix})
	must(t, err)
	store, err := access.Open(access.Config{Client: conn.Client, Prefix: r.Prefix, Log: r.log.Logger()})
	must(t, err)
	cfg := dashboard.Config{Redis: conn, Prefix: r.Prefix, Access: store, Version: "test", Logger: r.log.Logger()}
	if change != nil {
		change(&cfg)
	}
	d, err := dashboard.New(cfg)
	must(t, err)
	atRoot := httptest.NewServer(r.counted(d))
	below := httptest.NewServer(r.counted(http.StripPrefix(path[:len(path)-1], d)))
	stripping := httptest.NewTLSServer(http.StripPrefix(path[:len(path)-1], proxy(t, atRoot.URL)))
	passing := httptest.NewTLSServer(proxy(t, below.URL))
	r.stripping, r.passing, r.direct = stripping.URL+path, passing.URL+path, below.URL+path
	t.Cleanup(func() {
		_ = d.Close() // ends the streams, for which Close of the servers would wait
		for _, server := range []*httptest.Server{stripping, passing, atRoot, below} {
			server.CloseClientConnections()
			server.Close()
		}
		_ = r.client.Close()
		conn.Close()
	})
	return r
}

// proxy returns a reverse proxy, as operators put one in front of a dashboard.
func proxy(t *testing.T, target string) http.Handler {
	t.Helper()
	to, err := url.Parse(target)
	must(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.SetXForwarded()
		r.Out.Host = r.In.Host
	}}
}

// counted counts the open streams of updates.
func (r *rig) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Header.Get("Accept") == "text/event-stream" {
			r.count(1)
			defer r.count(-1)
		}
		next.ServeHTTP(w, request)
	})
}

func (r *rig) count(change int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams += change
}

// streamsAre waits until a number of streams of updates is open.
func (r *rig) streamsAre(want int) {
	r.T.Helper()
	redistest.Eventually(r.T, patience, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.streams == want, fmt.Sprintf("%d streams are open, want %d", r.streams, want)
	})
}

// token adds a token for all queues, or for the given ones, and returns its secret.
func (r *rig) token(verbs []access.Verb, queues ...string) (secret string) {
	r.T.Helper()
	if len(queues) == 0 {
		queues = []string{"*"}
	}
	secret, err := r.op.AddToken(r.T.Context(), access.Token{Name: "viewer-" + rand.Text(), Verbs: verbs, Queues: queues})
	must(r.T, err)
	return secret
}

// placeIn returns the only place of a message in a queue.
func (r *rig) placeIn(queue, id string) admin.Sighting {
	r.T.Helper()
	f, err := r.op.Find(r.T.Context(), id, admin.FindOptions{Queues: []string{queue}})
	if err != nil || len(f.Places) != 1 {
		r.T.Fatalf("%s is in %d places: %v", id, len(f.Places), err)
	}
	return f.Places[0]
}

// send schedules a message.
func (r *rig) send(queue, id, payload string, options ...bridge.Option) {
	r.T.Helper()
	_, err := r.client.Schedule(r.T.Context(), queue, []byte(payload), append(options, bridge.WithID(id))...)
	must(r.T, err)
}

// bridge runs a bridge until the test ends.
func (r *rig) bridge() {
	r.T.Helper()
	b, err := bridge.NewBridge(bridge.Config{Redis: r.redis(), Prefix: r.Prefix, Logger: r.log.Logger()})
	must(r.T, err)
	r.run(b.Run)
}

// worker runs a worker until the test ends.
func (r *rig) worker(queue, group string, handler bridge.Handler) {
	r.T.Helper()
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r.redis(), Prefix: r.Prefix, Queue: queue, Group: group,
		Handler: handler, Logger: r.log.Logger()})
	must(r.T, err)
	r.run(w.Run)
}

// redis returns a connection that is closed at the end of the test.
func (r *rig) redis() *bridge.Redis {
	r.T.Helper()
	conn, err := bridge.Dial(r.T.Context(), r.Server.URL())
	must(r.T, err)
	r.T.Cleanup(conn.Close)
	return conn
}

// run runs a part until the test ends.
func (r *rig) run(part func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) {
			r.T.Error(err)
		}
	})
	r.T.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
