package servers_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/servers"
	"github.com/duestream/duestream/integration/redistest"
)

// One process is a bridge, takes requests, answers operators and pushes messages. When it stops, the requests end
// first, and then the bridge. A caller that waits for a delivery still gets an answer.
func TestServeAnswersOverHTTPAsWell(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	got := make(chan string, 1)
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hook := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got <- string(text)
	}), ReadHeaderTimeout: clitest.Patience}
	go func() { _ = hook.Serve(target) }()
	t.Cleanup(func() { _ = hook.Close() })
	c.OK("push", "add", "q", "--url", "http://"+target.Addr().String(), "--group", "hook", "--allow-http",
		"--allow-network", "127.0.0.1/32")
	file := filepath.Join(t.TempDir(), "token")
	all := c.Start("serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--push", "--first-token-file", file)
	at, operators := "http://"+all.ListensFor("requests"), "http://"+all.ListensFor("operators")
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(secret))
	clitest.Becomes(t, operators+"/readyz", http.StatusOK, "ok\n")
	clitest.Becomes(t, operators+"/healthz", http.StatusOK, "ok\n")
	if code, text := clitest.Ask(t, "POST", at+"/v1/queues/q/messages?in_ms=50", "hello", "Authorization",
		"Bearer "+token); code != http.StatusCreated {
		t.Fatal(code, text)
	}
	if text := <-got; !strings.Contains(text, "hello") {
		t.Errorf("posted was %s", text)
	}
	clitest.Becomes(t, operators+"/metrics", http.StatusOK, `duestream_enqueued_total{queue="q"} 1`)
	waits := make(chan int, 1)
	go func() {
		code, _ := clitest.Ask(t, "POST", at+"/v1/queues/q/deliveries?group=g2&wait_ms=60000", "", "Authorization",
			"Bearer "+token)
		waits <- code
	}()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.Run("queue", "show", "q").Out + c.Run("consumers", "q").Out + c.Run("stats", "q").Out
		return strings.Contains(out, "g2"), out
	})
	all.Stop()
	redistest.Want(t, "the waiting caller is answered", <-waits, http.StatusOK)
	redistest.Want(t, "exit code", all.Wait(), exit.OK)
	log := all.Err.String()
	if front, bridge := strings.Index(log, "gateway stopped"), strings.Index(log, `"bridge stops"`); front < 0 ||
		bridge < front {
		t.Errorf("the bridge stopped before the gateway:\n%s", log)
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
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, args := range []string{"serve --http " + at, "serve --admin " + at, "gateway --http " + at,
		"gateway --http 127.0.0.1:0 --admin " + at} {
		c.Fails(exit.Failure, []string{"listen on " + at}, strings.Fields(args)...)
	}
	missing := filepath.Join(t.TempDir(), "tokens")
	clitest.New(t).Fails(exit.Failure, []string{"no such file"}, "serve", "--http", "127.0.0.1:0", "--tokens-file",
		missing)
}

// Until Redis is reached, an operator gets 503 for a page that will exist, and 404 only for a page that will not.
func TestOperatorsAreToldThatAGatewayStarts(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	one := c.Start("gateway", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	at := "http://" + one.ListensFor("operators")
	for _, path := range []string{"/token/shop", "/limits", "/info", "/pools", "/version"} {
		clitest.Becomes(t, at+path, http.StatusServiceUnavailable, "it starts")
	}
	clitest.Becomes(t, at+"/nothing", http.StatusNotFound, "")
}

// An address for operators that other machines can reach needs accounts. With accounts, every page needs one, except
// the probes.
func TestOperatorsNeedAccountsBeyondThisMachine(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, command := range []string{"serve", "gateway"} {
		for _, addr := range []string{"0.0.0.0:0", ":7778", "[::]:0", "10.0.0.1:7778", "example.com:7778"} {
			c.Fails(exit.Invalid, []string{"admin \"" + addr + "\": without accounts", "--admin-accounts-file"}, command,
				"--admin", addr)
		}
		c.Fails(exit.Invalid, []string{`admin "nowhere": must be host:port`}, command, "--admin", "nowhere")
		c.Fails(exit.Failure, []string{"file of accounts"}, command, "--admin", "127.0.0.1:0", "--admin-accounts-file",
			"/nowhere/x")
	}
	file := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(file, []byte("# ours\nana:correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := c.Start("serve", "--admin", "0.0.0.0:0", "--admin-accounts-file", file)
	_, port, err := net.SplitHostPort(one.ListensFor("operators"))
	if err != nil {
		t.Fatal(err)
	}
	at := "http://127.0.0.1:" + port
	if code, text := clitest.Ask(t, "GET", at+"/metrics", ""); code != http.StatusUnauthorized {
		t.Error(code, text)
	}
	clitest.Becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	clitest.Becomes(t, strings.Replace(at, "//", "//ana:correct%20horse@", 1)+"/metrics", http.StatusOK, "go_goroutines")
	clitest.Becomes(t, at+"/readyz", http.StatusServiceUnavailable, "")
}

// A server that loads its data accepts connections, and refuses reads. A replica without its master behaves in the
// same way.
func TestGatewayWaitsForAServerThatAnswersNoReadsYet(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	c.Server.Do(t, "CONFIG", "SET", "replica-serve-stale-data", "no")
	c.Server.Do(t, "REPLICAOF", "127.0.0.1", "1")
	file := filepath.Join(t.TempDir(), "token")
	gateway := c.Start("gateway", "--http", "127.0.0.1:0", "--first-token-file", file)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(gateway.Err.String(), "cannot be asked for its tokens"), gateway.Err.String()
	})
	c.Server.Do(t, "REPLICAOF", "NO", "ONE")
	gateway.ListensFor("requests")
	if secret, err := os.ReadFile(file); err != nil || len(secret) == 0 {
		t.Errorf("the first token: %q, %v", secret, err)
	}
}

// Regression: /readyz asked a random node of a cluster. While one of three nodes hung, every third answer was 503.
func TestAGatewayIsReadyWhileAnyNodeOfItsClusterAnswers(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	r, err := bridge.Dial(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c.Masters()[0].Pause()
	for range 12 { // enough for a random choice to hit the hanging node
		if err := servers.CheckAnswers(r); err != nil {
			t.Fatal(err)
		}
	}
}
