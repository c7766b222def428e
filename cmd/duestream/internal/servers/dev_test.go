package servers_test

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

var (
	devURL       = regexp.MustCompile(`url +redis://(127\.0\.0\.1:[0-9]+)`)
	devDashboard = regexp.MustCompile(`dashboard +(http://127\.0\.0\.1:[0-9]+/dashboard/login#\S+)`)

	devData = regexp.MustCompile(`data +in (/\S+)`)
)

// childServers reports whether this machine has a server that dev can start as a child process.
func childServers() bool {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if _, err := exec.LookPath(name); err == nil {
			return true
		}
	}
	return false
}

// submatch returns the first group of a pattern, which must match the text.
func submatch(t *testing.T, pattern *regexp.Regexp, text string) string {
	t.Helper()
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", pattern, text)
	}
	return m[1]
}

// dev shows a first delivery within ten seconds, a retry and a dead letter. Other clients can connect to its server. At
// its end, the server is stopped and the data is removed.
func TestDevShowsADeliveryWithinTenSecondsAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"child": {"dev"}, "in process": {"dev", "--in-process"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := name == "child" && childServers()
			began := time.Now()
			dev := (&clitest.CLI{T: t}).Start(args...)
			dev.Says("  ok\n")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the first delivery took %v", took)
			}
			out := dev.Out.String()
			want := "miniredis inside this process"
			if child {
				want = "child process /"
			}
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
			opensDevDashboard(t, submatch(t, devDashboard, out))
			// Other clients can connect to it.
			addr := submatch(t, devURL, out)
			c := &clitest.CLI{T: t, URL: "redis://" + addr}
			c.OK("schedule", "demo", "--id", "from-outside", "hello")
			dev.Says("from-outside")
			c.OK("health")
			if stats := c.OK("stats"); !strings.Contains(stats, "demo-workers") {
				t.Error(stats)
			}
			if top := c.OK("top", "--once", "--interval", "100ms"); !strings.Contains(top, "demo-workers") {
				t.Error(top)
			}
			dev.Says("retry in ")
			dev.Says("dead letter")
			redistest.Eventually(t, clitest.Patience, func() (bool, string) {
				letters := c.OK("dead", "list", "demo")
				return strings.Contains(letters, "this message always fails"), letters
			})
			dev.Stop()
			if code := dev.Wait(); code != exit.OK {
				t.Errorf("exit code %d\n%s", code, dev.Err)
			}
			if dev.Err.String() != "" {
				t.Errorf("stderr: %s", dev.Err)
			}
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Errorf("something still listens at %s", addr)
			}
			if child {
				if _, err := os.Stat(submatch(t, devData, out)); !os.IsNotExist(err) {
					t.Errorf("data is left: %v", err)
				}
			}
		})
	}
}

// opensDevDashboard does what the script of the login page does in a browser: it sends what stands behind # as a token.
// The page must show the queue of dev, and offer its changes.
func opensDevDashboard(t *testing.T, address string) {
	t.Helper()
	login, secret, _ := strings.Cut(address, "#")
	b := browser(t)
	res, err := b.Get(login)
	if status, text, _ := page(t, res, err); status != http.StatusOK || !strings.Contains(text, `id="login"`) {
		t.Fatalf("%s: %d\n%s", login, status, text)
	}
	res, err = b.PostForm(login, url.Values{"token": {secret}})
	if status, text, _ := page(t, res, err); status != http.StatusOK || !strings.Contains(text, "queue?queue=demo") ||
		strings.Contains(text, "read-only") {
		t.Errorf("the dashboard: %d\n%s", status, text)
	}
}

// dev ends by itself after the time of --for, and prints no deliveries with --quiet.
func TestDevStopsByItself(t *testing.T) {
	t.Parallel()
	dev := (&clitest.CLI{T: t}).Start("dev", "--in-process", "--for", "10ms", "--quiet")
	if code := dev.Wait(); code != exit.OK || !strings.Contains(dev.Out.String(), "Stopped: ") {
		t.Errorf("exit code %d\n%s%s", code, dev.Out, dev.Err)
	}
	if strings.Contains(dev.Out.String(), "  ok\n") {
		t.Errorf("--quiet prints deliveries:\n%s", dev.Out)
	}
}

// With --data, messages outlive dev. Without an installed server, dev cannot keep data, and says what to install.
func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !childServers() {
		(&clitest.CLI{T: t}).Start("dev", "--data", dir).Says("install redis-server or valkey-server")
		return
	}
	first := (&clitest.CLI{T: t}).Start("dev", "--data", dir, "--quiet")
	first.Says("kept in " + dir)
	c := &clitest.CLI{T: t, URL: "redis://" + submatch(t, devURL, first.Out.String())}
	c.OK("schedule", "mine", "--id", "kept", "--in", "1h", "hello")
	first.Stop()
	first.Wait()
	second := (&clitest.CLI{T: t}).Start("dev", "--data", dir, "--quiet")
	second.Says("kept in " + dir)
	c.URL = "redis://" + submatch(t, devURL, second.Out.String())
	c.OK("show", "mine", "kept")
}

// A port in use is an error, with either kind of server.
func TestDevRefusesAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, args := range [][]string{{"dev", "--port", port}, {"dev", "--port", port, "--in-process"}} {
		dev := (&clitest.CLI{T: t}).Start(args...)
		if code := dev.Wait(); code != exit.Failure || !strings.Contains(dev.Err.String(), "in use") {
			t.Errorf("exit code %d: %s", code, dev.Err)
		}
	}
}

// The server of a dev that is killed ends, too, so that no server without an owner stays.
func TestServerOfDevDiesWithIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || !childServers() {
		t.Log("not tested here: it needs Linux (parent-death signal) and an installed Redis or Valkey server")
		return
	}
	cmd, out := (&clitest.CLI{T: t}).Program("dev")
	redistest.Eventually(t, clitest.Patience,
		func() (bool, string) { return strings.Contains(out.String(), "  ok\n"), out.String() })
	addr := submatch(t, devURL, out.String())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil, "the server still listens at " + addr
	})
	_ = os.RemoveAll(submatch(t, devData, out.String()))
}
