package servers_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// browser is an HTTP client with cookies, which follows redirects.
func browser(t *testing.T) *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport}
}

// page returns the status, the text and the address of a page, after redirects.
func page(t *testing.T, res *http.Response, err error) (status int, text, address string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(all), res.Request.URL.String()
}

// logIn opens the address of operators and logs in with the secret of a token. It returns the overview.
func logIn(t *testing.T, b *http.Client, at, secret string) string {
	t.Helper()
	becomesReady(t, at)
	res, err := b.Get(at)
	if status, text, address := page(t, res, err); status != http.StatusOK ||
		address != at+"/dashboard/login?next=" || !strings.Contains(text, `action="login"`) {
		t.Fatalf("the address leads to %s: %d\n%s", address, status, text)
	}
	res, err = b.PostForm(at+"/dashboard/login", url.Values{"token": {secret}})
	status, text, address := page(t, res, err)
	if status != http.StatusOK || address != at+"/dashboard/" {
		t.Fatalf("the login leads to %s: %d\n%s", address, status, text)
	}
	return text
}

func becomesReady(t *testing.T, at string) {
	clitest.Becomes(t, at+"/dashboard/login", http.StatusOK, "Log in")
}

// serve and gateway show the dashboard on the address for operators, also if serve takes no requests. The first token
// opens it. A viewer whose page is open does not delay the end of the process.
func TestOperatorsHaveADashboard(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"serve"}, {"serve", "--http", "127.0.0.1:0"}, {"gateway", "--http", "127.0.0.1:0"}} {
		t.Run(args[0]+strings.Join(args[1:], " "), func(t *testing.T) {
			t.Parallel()
			c := clitest.New(t)
			c.OK("schedule", "orders", "--in", "1h", "hello")
			file := filepath.Join(t.TempDir(), "token")
			process := c.Start(append(args, "--admin", "127.0.0.1:0", "--first-token-file", file)...)
			at := "http://" + process.ListensFor("operators")
			if page := at + "/dashboard/"; !strings.Contains(process.Err.String(), `"dashboard":"`+page+`"`) {
				t.Errorf("the log does not tell the address %s:\n%s", page, process.Err.String())
			}
			if len(args) > 1 {
				process.ListensFor("requests")
			}
			becomesReady(t, at)
			secret, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b := browser(t)
			text := logIn(t, b, at, strings.TrimSpace(string(secret)))
			for _, want := range []string{`href="queue?queue=orders"`, "duestream " + clitest.Version} {
				if !strings.Contains(text, want) {
					t.Errorf("the overview lacks %q:\n%s", want, text)
				}
			}
			if strings.Contains(text, "read-only") {
				t.Error("the dashboard is read-only")
			}
			updates, err := b.Get(at + "/dashboard/live-overview")
			if err != nil {
				t.Fatal(err)
			}
			defer updates.Body.Close()
			lines := bufio.NewScanner(updates.Body)
			for lines.Scan() && lines.Text() != "event: update" {
			}
			if lines.Text() != "event: update" {
				t.Fatalf("no update: %v", lines.Err())
			}
			process.Stop()
			redistest.Want(t, "exit code", process.Wait(), exit.OK)
			log := process.Out.String() + process.Err.String()
			if strings.Contains(log, "dst_") || strings.Contains(log, "cut off") {
				t.Errorf("it says\n%s", log)
			}
		})
	}
}

// The dashboard needs no account of the operators' address, because it has a login of its own, and it answers behind a
// proxy, under any host. All else on the address stays guarded, whatever way a path is written.
func TestOnlyTheDashboardIsOpen(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := filepath.Join(t.TempDir(), "accounts")
	if err := os.WriteFile(file, []byte("ana:correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := "http://" + c.Start("serve", "--admin", "127.0.0.1:0", "--admin-accounts-file", file).
		ListensFor("operators")
	local := "http://" + c.Start("gateway", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0").ListensFor("operators")
	becomesReady(t, closed)
	becomesReady(t, local)
	proxy := []string{"X-Forwarded-For", "203.0.113.9", "Host", "ops.example"}
	for _, path := range []string{"/", "/dashboard", "/dashboard/", "/dashboard/login", "/dashboard/assets/app.css"} {
		for _, at := range []string{closed, local} {
			if code, text := clitest.Ask(t, "GET", at+path, "", proxy...); code != http.StatusOK {
				t.Errorf("%s%s: %d %s", at, path, code, text)
			}
		}
	}
	for _, path := range []string{"/metrics", "/token/ns", "/info", "/dashboards", "/dashboard2/", "/x/dashboard/",
		"/dashboard/../metrics", "/dashboard/%2e%2e/metrics", "//dashboard/../metrics", "/dashboard%2f..%2fmetrics"} {
		for at, refusal := range map[string]int{closed: http.StatusUnauthorized, local: http.StatusForbidden} {
			code, text := clitest.Ask(t, "GET", at+path, "", proxy...)
			if code != refusal && !(code == http.StatusNotFound && strings.Contains(path, "%2")) {
				t.Errorf("%s%s: %d %s", at, path, code, text)
			}
		}
	}
	if code, _ := clitest.Ask(t, "POST", closed+"/dashboard/login", "token=x", "Sec-Fetch-Site", "cross-site"); code !=
		http.StatusForbidden {
		t.Errorf("a foreign page could log in: %d", code)
	}
}

// Until Redis is reached, the dashboard answers with a page that tries again, and then it works.
func TestTheDashboardWaitsForRedis(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--appendonly", "yes"))
	token := c.OK("token", "add", "ana", "--verb", "inspect", "--queue", "*", "--json")
	var added struct{ Secret string }
	clitest.Decode(t, token, &added)
	c.Server.Stop()
	process := c.Start("serve", "--admin", "127.0.0.1:0", "--dashboard-read-only")
	at := "http://" + process.ListensFor("operators")
	code, text := clitest.Get(t, at)
	if code != http.StatusServiceUnavailable || !strings.Contains(text, `http-equiv="refresh"`) {
		t.Errorf("%d\n%s", code, text)
	}
	c.Server.Start()
	if text := logIn(t, browser(t), at, added.Secret); !strings.Contains(text, "read-only") {
		t.Errorf("the dashboard does not say that it is read-only:\n%s", text)
	}
}

// More viewers than other listeners have connections keep their pages open, and the probes still answer.
func TestManyViewersLeaveConnectionsToProbes(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	var added struct{ Secret string }
	clitest.Decode(t, c.OK("token", "add", "ana", "--verb", "inspect", "--queue", "*", "--json"), &added)
	at := "http://" + c.Start("serve", "--admin", "127.0.0.1:0").ListensFor("operators")
	b := browser(t)
	logIn(t, b, at, added.Secret)
	for range 100 {
		updates, err := b.Get(at + "/dashboard/live-overview")
		if err != nil {
			t.Fatal(err)
		}
		defer updates.Body.Close()
		redistest.Want(t, "status", updates.StatusCode, http.StatusOK)
	}
	clitest.Becomes(t, at+"/healthz", http.StatusOK, "ok\n")
}
