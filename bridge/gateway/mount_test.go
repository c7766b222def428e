package gateway_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
)

func init() { gateway.MountLmstfy = lmstfy.Mount }

// A gateway whose Run was not called warns once. Regression: when a program did not call Run, callers waited and the
// log did not say why.
func TestAGatewayThatNobodyRunsTellsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	redis := redistest.Must(bridge.Dial(t.Context(), server.URL()))
	defer redis.Close()
	store := redistest.Must(access.Open(access.Config{Client: redis.Client, Prefix: server.Prefix(t)}))
	var log bytes.Buffer
	g := redistest.Must(gateway.New(gateway.Config{Redis: redis, Prefix: server.Prefix(t), Access: store,
		Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	g.Mount("/wait/", func(c *gateway.Call) {
		_ = c.Poll(time.Second, func(context.Context) error { return nil })
	}, func(context.Context) {})
	for range 2 {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/wait/", nil)
		g.Handler().ServeHTTP(httptest.NewRecorder(), request)
	}
	redistest.Want(t, "warnings", strings.Count(log.String(), "Run of this gateway was not called"), 1)
	redistest.Want(t, "result of Close", g.Close(), nil)
}

// A mounted API gets the requests under its prefix, and its loops run as long as the gateway runs.
func TestAMountedAPIRunsWithTheGateway(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	redis, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	store := redistest.Must(access.Open(access.Config{Client: redis.Client, Prefix: server.Prefix(t)}))
	g := redistest.Must(gateway.New(gateway.Config{Redis: redis, Prefix: server.Prefix(t), Access: store}))
	runs, ended := make(chan struct{}), make(chan struct{})
	g.Mount("/other/", func(c *gateway.Call) { c.W.WriteHeader(http.StatusTeapot) }, func(ctx context.Context) {
		close(runs)
		<-ctx.Done()
		close(ended)
	})
	for path, want := range map[string]int{"/other/x": http.StatusTeapot, "/others": http.StatusNotFound} {
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		redistest.Want(t, path, w.Code, want)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }()
	select {
	case <-runs:
	case <-time.After(10 * time.Second):
		t.Fatal("the loops of the mounted API do not run")
	}
	stop()
	<-ended
	redistest.Want(t, "result of Run", <-ran, nil)
	redistest.Want(t, "result of Close", g.Close(), nil)
}
