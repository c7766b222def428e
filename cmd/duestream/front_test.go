package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// listensFor waits until a command logs that it listens for a purpose, and returns the address.
func (r *running) listensFor(what string) (addr string) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() (bool, string) {
		_, rest, _ := strings.Cut(r.err.String(), `"listens for `+what+`","address":"`)
		addr, _, _ = strings.Cut(rest, `"`)
		return addr != "", r.err.String()
	})
	return addr
}

// asks sends a request, and returns its status and body.
func (r *running) asks(method, url, body string, headers ...string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// One process is a bridge, takes requests, answers operators and pushes messages. It stops in that order.
func TestServeAnswersOverHTTPAsWell(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	got := make(chan string, 1)
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hook := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got <- string(text)
	}), ReadHeaderTimeout: patience}
	go func() { _ = hook.Serve(target) }()
	t.Cleanup(func() { _ = hook.Close() })
	c.ok("push", "add", "q", "--url", "http://"+target.Addr().String(), "--group", "hook", "--allow-http", "--allow-network", "127.0.0.1/32")
	file := filepath.Join(t.TempDir(), "token")
	all := c.start("serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--push", "--first-token-file", file)
	at, operators := "http://"+all.listensFor("requests"), "http://"+all.listensFor("operators")
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(secret))
	becomes(t, operators+"/readyz", http.StatusOK, "ok\n")
	becomes(t, operators+"/healthz", http.StatusOK, "ok\n")
	if code, text := all.asks("POST", at+"/v1/queues/q/messages?in_ms=50", "hello", "Authorization",
		"Bearer "+token); code != http.StatusCreated {
		t.Fatal(code, text)
	}
	if text := <-got; !strings.Contains(text, "hello") {
		t.Errorf("posted was %s", text)
	}
	becomes(t, operators+"/metrics", http.StatusOK, `duestream_enqueued_total{queue="q"} 1`)
	waits := make(chan int, 1)
	go func() {
		code, _ := all.asks("POST", at+"/v1/queues/q/deliveries?group=g2&wait_ms=60000", "", "Authorization", "Bearer "+token)
		waits <- code
	}()
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.run("queue", "show", "q").out + c.run("consumers", "q").out + c.run("stats", "q").out
		return strings.Contains(out, "g2"), out
	})
	all.stop()
	redistest.Want(t, "who waits is answered", <-waits, http.StatusOK)
	redistest.Want(t, "exit code", all.wait(), exitOK)
	log := all.err.String()
	if front, bridge := strings.Index(log, "gateway stopped"), strings.Index(log, `"bridge stops"`); front < 0 || bridge < front {
		t.Errorf("requests are to end before the bridge does:\n%s", log)
	}
}

// An address in use ends the process at its start with an error, whether or not Redis answers.
func TestATakenAddressEndsTheProcessAtItsStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	at := taken.Addr().String()
	c := &cli{t: t, url: unreachable}
	for _, args := range []string{"serve --http " + at, "serve --admin " + at, "gateway --http " + at,
		"gateway --http 127.0.0.1:0 --admin " + at} {
		c.fails(exitFailure, []string{"listen on " + at}, strings.Fields(args)...)
	}
	missing := filepath.Join(t.TempDir(), "tokens")
	newCLI(t).fails(exitFailure, []string{"no such file"}, "serve", "--http", "127.0.0.1:0", "--tokens-file", missing)
}

// Until Redis is reached, an operator gets 503 instead of 404.
func TestOperatorsAreToldThatAGatewayStarts(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	one := c.start("gateway", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	at := "http://" + one.listensFor("operators")
	for _, path := range []string{"/token/shop", "/limits", "/info", "/pools", "/version"} {
		becomes(t, at+path, http.StatusServiceUnavailable, "it starts")
	}
	becomes(t, at+"/nothing", http.StatusNotFound, "")
}

// Operators beyond this machine need accounts.
func TestOperatorsNeedAccountsBeyondThisMachine(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	for _, command := range []string{"serve", "gateway"} {
		for _, addr := range []string{"0.0.0.0:0", ":7778", "[::]:0", "10.0.0.1:7778", "example.com:7778"} {
			c.fails(exitInvalid, []string{"admin \"" + addr + "\": without accounts", "--admin-accounts-file"}, command, "--admin", addr)
		}
		c.fails(exitInvalid, []string{`admin "nowhere": must be host:port`}, command, "--admin", "nowhere")
		c.fails(exitFailure, []string{"file of accounts"}, command, "--admin", "127.0.0.1:0", "--admin-accounts-file", "/nowhere/x")
	}
	file := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(file, []byte("# ours\nana:correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := c.start("serve", "--admin", "0.0.0.0:0", "--admin-accounts-file", file)
	_, port, err := net.SplitHostPort(one.listensFor("operators"))
	if err != nil {
		t.Fatal(err)
	}
	at := "http://127.0.0.1:" + port
	if code, text := one.asks("GET", at+"/metrics", ""); code != http.StatusUnauthorized {
		t.Error(code, text)
	}
	becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	becomes(t, strings.Replace(at, "//", "//ana:correct%20horse@", 1)+"/metrics", http.StatusOK, "go_goroutines")
	becomes(t, at+"/readyz", http.StatusServiceUnavailable, "")
}

// --push=false turns pushing off, also if the environment turns it on.
func TestPushIsTurnedOffByTheFlag(t *testing.T) {
	t.Setenv("DUESTREAM_PUSH", "true")
	for _, one := range []struct {
		args []string
		push bool
	}{
		{nil, true},
		{[]string{"--push"}, true},
		{[]string{"--push=false"}, false},
	} {
		var o frontOptions
		cmd := &cobra.Command{}
		o.flags(cmd, "")
		if err := errors.Join(cmd.ParseFlags(one.args), o.resolve()); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, fmt.Sprint(one.args), o.push, one.push)
	}
}

// A server that loads its data accepts connections, and refuses reads. A replica without its master behaves in the
// same way.
func TestGatewayWaitsForAServerThatAnswersNoReadsYet(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t))
	c.s.Do(t, "CONFIG", "SET", "replica-serve-stale-data", "no")
	c.s.Do(t, "REPLICAOF", "127.0.0.1", "1")
	file := filepath.Join(t.TempDir(), "token")
	gateway := c.start("gateway", "--http", "127.0.0.1:0", "--first-token-file", file)
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(gateway.err.String(), "cannot be asked for its tokens"), gateway.err.String()
	})
	c.s.Do(t, "REPLICAOF", "NO", "ONE")
	gateway.listensFor("requests")
	if secret, err := os.ReadFile(file); err != nil || len(secret) == 0 {
		t.Errorf("the first token: %q, %v", secret, err)
	}
}

// /readyz used to ask a random node of a cluster. While one of three nodes hung, every third answer was 503.
func TestAGatewayIsReadyWhileAnyNodeOfItsClusterAnswers(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	r, err := bridge.Dial(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c.Masters()[0].Pause()
	for range 12 {
		if err := reaches(r); err != nil {
			t.Fatal(err)
		}
	}
}
