package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/bridge/gateway/access"
	"github.com/duestream/duestream/integration/redistest"
)

// A gateway writes the first token into a file that nobody else can read. The bug: it printed the secret, which may
// do everything, to its output, the log of a service.
func TestGatewayAnswersAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "token")
	bare := c.start("gateway", "--http", "127.0.0.1:0")
	bare.address()
	out := bare.out.String() + bare.err.String()
	if strings.Contains(out, "dst_") || !strings.Contains(out, "there is no token") {
		t.Fatalf("without tokens it says\n%s", out)
	}
	first := c.start("gateway", "--http", "127.0.0.1:0", "--first-token-file", file)
	at := first.address()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	if out := first.out.String() + first.err.String(); !strings.HasPrefix(token, "dst_") || strings.Contains(out, "dst_") {
		t.Fatalf("the file holds %q, and it says\n%s", token, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal("mode of the file", info, err)
	}
	second := c.start("gateway", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(second.err.String(), "listens for requests"), second.err.String()
	})
	for _, base := range []string{at, second.address()} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+base+"/v1/queues/q/messages?in_ms=3600000",
			strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		redistest.Want(t, "status", res.StatusCode, http.StatusCreated)
		if !strings.Contains(string(body), `"id":`) {
			t.Errorf("the answer is %s", body)
		}
	}
	if out := c.ok("peek", "q", "--json"); strings.Count(out, `"id"`) != 2 {
		t.Errorf("two messages were published:\n%s", out)
	}
	_, looked, _ := strings.Cut(second.err.String(), `"listens for metrics and health","address":"`)
	looked, _, _ = strings.Cut(looked, `"`)
	becomes(t, "http://"+looked+"/readyz", http.StatusOK, "ok\n")
	becomes(t, "http://"+looked+"/metrics", http.StatusOK, `duestream_enqueued_total{queue="q"} 1`)
	for _, one := range []*running{first, second} {
		one.stop()
		redistest.Want(t, "exit code", one.wait(), exitOK)
		if !strings.Contains(one.err.String(), "gateway stopped") {
			t.Errorf("it does not say that it stopped:\n%s", one.err)
		}
	}
	redistest.Want(t, "printed by the second", second.out.String(), "")
}

func TestGatewayRefusesWhatItCannotListenOn(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for args, want := range map[string]string{"--http nowhere": `http "nowhere"`, "--max-payload 0": "max-payload 0",
		"--max-payload 16777217": "max-payload 16777217", "--tokens-file /nowhere/tokens": "no such file"} {
		if r := c.run(append([]string{"gateway"}, strings.Fields(args)...)...); r.code == exitOK ||
			!strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, stderr without %q:\n%s", args, r.code, want, r.err)
		}
	}
}

// Regression: a gateway accepted only as many connections as callers may wait. When that many waited, it accepted no
// other connection: no client could publish or settle, and no new request got an answer.
func TestCallersThatWaitLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	redis, err := bridge.Dial(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	store, err := access.Open(access.Config{Client: redis.Client, Prefix: c.prefix})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Redis: redis, Prefix: c.prefix, Access: store, MaxPolls: 8, MaxRequests: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { _ = ServeGateway(ctx, socket, g) })
	base := "http://" + socket.Addr().String() + "/v1/queues/q/"
	asks := func(client *http.Client, token, path string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, nil)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, errors.Join(err, res.Body.Close())
	}
	var tokens [4]addedToken // each may have a quarter
	for i := range tokens {
		decode(t, c.ok("token", "add", fmt.Sprint("t", i), "--verb", "publish,consume", "-q", "q", "--json"), &tokens[i])
		for range 2 {
			all.Go(func() {
				one := &http.Client{Transport: &http.Transport{}} // uses the same connection for each of its waits
				defer one.CloseIdleConnections()
				for ctx.Err() == nil { // a probe below may have taken its place
					_, _ = asks(one, tokens[i].Secret, "deliveries?group=g&wait_ms=60000")
				}
			})
		}
	}
	others := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answers := func(token, path string, want int) {
		t.Helper()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			status, err := asks(others, token, path)
			return status == want, fmt.Sprint(path, ": ", status, err)
		})
	}
	for _, one := range tokens {
		answers(one.Secret, "deliveries?group=g&wait_ms=1", http.StatusServiceUnavailable) // the token's other callers wait
	}
	answers(tokens[0].Secret, "messages?id=m&in_ms=3600000", http.StatusCreated)
}

// ServeGateway answers requests that come to a socket, until ctx ends.
func ServeGateway(ctx context.Context, socket net.Listener, g *gateway.Gateway) error {
	f := &front{patience: 20 * time.Second, log: slog.New(slog.DiscardHandler), socket: socket}
	return f.serve(ctx, g)
}
