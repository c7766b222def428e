package servers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/servers"
	"github.com/duestream/duestream/integration/redistest"
)

// A gateway writes the first token, which has all rights, into a file that nobody else can read. Regression: an earlier
// release printed its secret, and the output of a service ends in its log. Two gateways then publish messages with this
// token, show their metrics, and stop cleanly.
func TestGatewayAnswersAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := filepath.Join(t.TempDir(), "token")
	bare := c.Start("gateway", "--http", "127.0.0.1:0")
	bare.Address()
	out := bare.Out.String() + bare.Err.String()
	if strings.Contains(out, "dst_") || !strings.Contains(out, "there is no token") {
		t.Fatalf("without tokens it says\n%s", out)
	}
	first := c.Start("gateway", "--http", "127.0.0.1:0", "--first-token-file", file)
	at := first.Address()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))
	if out := first.Out.String() + first.Err.String(); !strings.HasPrefix(token, "dst_") || strings.Contains(out, "dst_") {
		t.Fatalf("the file holds %q, and it says\n%s", token, out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal("mode of the file", info, err)
	}
	second := c.Start("gateway", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(second.Err.String(), "listens for requests"), second.Err.String()
	})
	for _, base := range []string{at, second.Address()} {
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
	if out := c.OK("peek", "q", "--json"); strings.Count(out, `"id"`) != 2 {
		t.Errorf("two messages were published:\n%s", out)
	}
	_, metricsAddress, _ := strings.Cut(second.Err.String(), `"listens for metrics and health","address":"`)
	metricsAddress, _, _ = strings.Cut(metricsAddress, `"`)
	clitest.Becomes(t, "http://"+metricsAddress+"/readyz", http.StatusOK, "ok\n")
	clitest.Becomes(t, "http://"+metricsAddress+"/metrics", http.StatusOK, `duestream_enqueued_total{queue="q"} 1`)
	for _, one := range []*clitest.Running{first, second} {
		one.Stop()
		redistest.Want(t, "exit code", one.Wait(), exit.OK)
		if !strings.Contains(one.Err.String(), "gateway stopped") {
			t.Errorf("it does not say that it stopped:\n%s", one.Err)
		}
	}
	redistest.Want(t, "printed by the second", second.Out.String(), "")
}

// A bad address, a bad limit or a missing file ends the gateway at its start with an error that names the setting.
func TestGatewayRefusesWhatItCannotListenOn(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for args, want := range map[string]string{"--http nowhere": `http "nowhere"`, "--max-payload 0": "max-payload 0",
		"--max-payload 16777217": "max-payload 16777217", "--tokens-file /nowhere/tokens": "no such file"} {
		if r := c.Run(append([]string{"gateway"}, strings.Fields(args)...)...); r.Code == exit.OK ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%s: exit code %d, stderr without %q:\n%s", args, r.Code, want, r.Err)
		}
	}
}

// Regression: a gateway accepted only as many connections as callers may wait. When that many waited, it accepted no
// other connection: no client could publish or settle, and no new request got an answer.
func TestCallersThatWaitLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	redis, err := bridge.Dial(t.Context(), c.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	store, err := access.Open(access.Config{Client: redis.Client, Prefix: c.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Redis: redis, Prefix: c.Prefix, Access: store, MaxPolls: 8, MaxRequests: 16})
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
	all.Go(func() { _ = servers.ServeGateway(ctx, socket, g) })
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
	var tokens [4]servers.AddedToken // one token may hold a quarter of all waiting calls: two calls
	for i := range tokens {
		clitest.Decode(t, c.OK("token", "add", fmt.Sprint("t", i), "--verb", "publish,consume", "-q", "q", "--json"),
			&tokens[i])
		for range 2 {
			all.Go(func() {
				one := &http.Client{Transport: &http.Transport{}} // uses the same connection for each of its waits
				defer one.CloseIdleConnections()
				for ctx.Err() == nil { // again, because a short call below may have taken the place of this one
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
