package workers_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/push"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/workers"
	"github.com/duestream/duestream/integration/redistest"
)

// A push target is added, listed, changed and removed. A signing key is shown once, when it is made; keys, headers and
// the query of the URL are never listed. A target does not outlive its queue.
func TestPushAddsListsRotatesAndRemoves(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	add := []string{"push", "add", "q", "--group", "partner", "--url", "https://example.com/hook?token=secret", "--header",
		"Authorization=secret", "--dead-status", "404,422", "--timeout", "3s"}
	out := c.OK(add...)
	_, key, told := strings.Cut(out, "signing key, shown this once: ")
	if !strings.HasPrefix(out, "q/partner  added\n") || !told || push.CheckKey(strings.TrimSpace(key)) != nil {
		t.Error(out)
	}
	if out := c.OK(add...); out != "q/partner  unchanged\n" {
		t.Error(out)
	}
	var row workers.PushTarget
	clitest.Decode(t, c.OK("push", "list", "--json"), &row)
	if row.URL != "https://example.com/hook?…" || row.Keys != 1 || len(row.DeadStatus) != 2 || row.Headers[0] != "Authorization" {
		t.Errorf("%+v", row)
	}
	out = c.OK("push", "list", "q") + c.OK("push", "list", "--json")
	if strings.Contains(out, "secret") || strings.Contains(out, "whsec_") {
		t.Error(out)
	}
	file := filepath.Join(t.TempDir(), "key")
	second := push.NewKey()
	if err := os.WriteFile(file, []byte(second+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := c.OK("push", "rotate", "q", "-g", "partner", "--key-file", file); out != "q/partner  rotated\n" {
		t.Error(out)
	}
	var made workers.PushChanged
	clitest.Decode(t, c.OK("push", "rotate", "q", "-g", "partner", "--json"), &made)
	if made.Did != "rotated" || push.CheckKey(made.Key) != nil {
		t.Errorf("%+v", made)
	}
	clitest.Decode(t, c.OK("push", "list", "q", "--json"), &row)
	if row.Keys != 2 {
		t.Errorf("%d keys", row.Keys)
	}
	c.OK("push", "rotate", "q", "-g", "partner", "--drop-old")
	c.Fails(exit.Failure, []string{"only one key", "hint: `duestream push rotate`"}, "push", "rotate", "q", "-g",
		"partner", "--drop-old")
	if names, _ := c.Offers("push", "rm", "q", "--group", ""); strings.Join(names, ",") != "partner" {
		t.Error(names)
	}
	r := c.Run("push", "rm", "q", "--group", "partner")
	if r.Code != exit.OK || !strings.Contains(r.Err, "the group partner stays") {
		t.Errorf("%+v", r)
	}
	c.Fails(exit.NotFound, []string{"no target", "hint: `duestream push list`"}, "push", "rm", "q", "--group", "partner")
	if out := c.OK("push", "list"); out != "no targets\n" {
		t.Error(out)
	}
	c.OK(add...)
	c.OK("queue", "delete", "q", "--force", "--yes")
	there, err := c.Redis().Do(t.Context(), c.Redis().B().Exists().Key(c.Key("q", "push")).Build()).AsInt64()
	if err != nil || there != 0 {
		t.Error("targets outlive their queue: ", there, err)
	}
}

// Each key is a command line, and its value a part of the error. There is no server, so the error comes before the
// command connects.
func TestWrongTargetsAreNamedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	const add = "push add q --group g --url "
	for line, want := range map[string]string{
		add + "http://example.com/":                           "url http://example.com/: must be https",
		add + "https://10.0.0.1/":                             "is not in the public internet",
		add + "https://example.com/ --allow-network 10.0.0.0": `allow-network "10.0.0.0": must be like 10.1.0.0/16`,
		add + "https://example.com/ --dead-status soon":       `dead-status "soon": must be a status code`,
		add + "https://example.com/ --dead-status 503":        `dead_status "503"`,
		add + "https://example.com/ --header Host=x":          `header "Host": must not be set`,
		add + "https://example.com/ --concurrency 5000":       `concurrency "5000": must be between 1 and 1000`,
		add + "https://example.com/ --key-file /nowhere/key":  "no such file",
		add + "https://example.com/ --timeout 2h":             `timeout "2h0m0s": must be between`,
		"push add q --url https://example.com/":               "group",
		"push rotate q --group g --key-file x --drop-old":     "--drop-old and --key-file exclude each other",
		"push run --cert a.pem":                               "cert key",
		"push run --ca /nowhere/ca.pem":                       "no such file",
	} {
		c.Fails(exit.Invalid, []string{want}, strings.Fields(line)...)
	}
}

// A process is killed in the middle of a push. Another process pushes the message again, after the visibility timeout,
// as attempt 2.
func TestAKilledRunnerLosesNothing(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	arrived, release := make(chan string, 10), make(chan struct{}) // attempts of requests; ends the held requests
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- r.Header.Get(push.HeaderAttempt)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	c.OK("queue", "set", "q", "--create", "visibility_timeout=500ms", "retry_min=1ms", "retry_max=1ms")
	c.OK("push", "add", "q", "--group", "g", "--url", server.URL, "--allow-http", "--allow-network", "127.0.0.0/8")
	first, _ := c.Program(c.Args([]string{"push", "run"})...)
	c.OK("schedule", "q", "hello")
	redistest.Want(t, "attempt", <-arrived, "1")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	close(release)
	second := c.Start("push", "run", "--metrics", "127.0.0.1:0")
	redistest.Want(t, "attempt", <-arrived, "2")
	at := "http://" + second.Address()
	clitest.Becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	clitest.Becomes(t, at+"/readyz", http.StatusOK, "ok\n")
	clitest.Becomes(t, at+"/metrics", http.StatusOK, `group="g"`)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.OK("stats", "q", "--json")
		return strings.Contains(out, `"entries":0`) || strings.Contains(out, `"pending":0`), out
	})
	second.Stop()
	redistest.Want(t, "exit code", second.Wait(), exit.OK)
}

// The pushing process is killed after each message, while other messages wait for the target's rate. These messages
// were not delivered yet, so each one is pushed once, with attempt 1. An attempt used up by the wait would make them
// dead letters, because max_attempts is 2.
func TestKilledRunnersUseUpNoAttemptOfWhatWaitsForTheRate(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.Serve()
	const n = 4
	attempts := make(chan string, 10*n)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		attempts <- r.Header.Get(push.HeaderAttempt)
	}))
	t.Cleanup(server.Close)
	c.OK("queue", "set", "q", "--create", "visibility_timeout=200ms", "retry_min=1ms", "retry_max=1ms", "max_attempts=2")
	c.OK("push", "add", "q", "--group", "g", "--url", server.URL, "--allow-http", "--allow-network", "127.0.0.0/8",
		"--rate", "1/s")
	for range n {
		c.OK("schedule", "q", "hello")
	}
	for left := n - 1; left >= 0; left-- { // messages that are left after this push
		p, _ := c.Program(c.Args([]string{"push", "run"})...)
		redistest.Want(t, "attempt", <-attempts, "1")
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			entries, err := c.Redis().Do(t.Context(), c.Redis().B().Xlen().Key(c.Key("q", "stream")).Build()).AsInt64()
			return err == nil && entries == int64(left), fmt.Sprint(entries, " entries, ", err)
		})
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	dead, err := c.Redis().Do(t.Context(), c.Redis().B().Exists().Key(c.Key("q", "dead")).Build()).AsInt64()
	redistest.Want(t, "dead letters", fmt.Sprint(dead, err), "0 <nil>")
	redistest.Want(t, "more requests", len(attempts), 0)
}

// Regression: a target sent more than its response, and net/http wrote up to 4 KiB of that into the operator's log, in
// no format and at every level. The log now says only that a library has something to say.
func TestNoBytesOfATargetAreInTheLog(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Close() })
	closed := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := target.Accept()
			if err != nil {
				return
			}
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n"+strings.Repeat("UNASKED ", 500))
				_, _ = io.Copy(io.Discard, conn) // until the other side closes
				closed <- struct{}{}
			}
			_ = conn.Close()
		}
	}()
	c.OK("push", "add", "q", "--url", "http://"+target.Addr().String(), "--group", "hook", "--allow-http",
		"--allow-network", "127.0.0.1/32")
	c.OK("schedule", "q", "x")
	_, out := c.ProgramWith([]string{"DUESTREAM_LOG_LEVEL=debug"}, c.Args([]string{"serve", "--push"})...)
	<-closed
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(out.String(), "a library says"), out.String()
	})
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "UNASKED") || !strings.HasPrefix(line, "{") {
			t.Errorf("a line of the log: %.200s", line)
		}
	}
}
