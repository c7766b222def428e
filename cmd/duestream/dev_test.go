package main

import (
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

var (
	devURL  = regexp.MustCompile(`url +redis://(127\.0\.0\.1:[0-9]+)`)
	devData = regexp.MustCompile(`data +in (/\S+)`)
)

// children reports whether dev can start a server as a child process here.
func children() bool {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if _, err := exec.LookPath(name); err == nil {
			return true
		}
	}
	return false
}

func find1(t *testing.T, pattern *regexp.Regexp, text string) string {
	t.Helper()
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", pattern, text)
	}
	return m[1]
}

func TestDevShowsADeliveryWithinTenSecondsAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"child": {"dev"}, "in process": {"dev", "--in-process"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := name == "child" && children()
			began := time.Now()
			dev := (&cli{t: t}).startDev(args...)
			dev.says("  ok\n")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the first delivery took %v", took)
			}
			out := dev.out.String()
			if want := map[bool]string{true: "child process /",
				false: "miniredis inside this process"}[child]; !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
			// Other clients can connect to it.
			addr := find1(t, devURL, out)
			c := &cli{t: t, url: "redis://" + addr}
			c.ok("schedule", "demo", "--id", "from-outside", "hello")
			dev.says("from-outside")
			c.ok("health")
			if stats := c.ok("stats"); !strings.Contains(stats, "demo-workers") {
				t.Error(stats)
			}
			if top := c.ok("top", "--once", "--interval", "100ms"); !strings.Contains(top, "demo-workers") {
				t.Error(top)
			}
			dev.says("retry in ")
			dev.says("dead letter")
			redistest.Eventually(t, patience, func() (bool, string) {
				letters := c.ok("dead", "list", "demo")
				return strings.Contains(letters, "this message always fails"), letters
			})
			dev.stop()
			if code := dev.wait(); code != exitOK {
				t.Errorf("exit code %d\n%s", code, dev.err)
			}
			if dev.err.String() != "" {
				t.Errorf("stderr: %s", dev.err)
			}
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				t.Errorf("something still listens at %s", addr)
			}
			if child {
				if _, err := os.Stat(find1(t, devData, out)); !os.IsNotExist(err) {
					t.Errorf("data is left: %v", err)
				}
			}
		})
	}
}

// startDev starts dev without connection flags.
func (c *cli) startDev(args ...string) *running {
	c.t.Helper()
	return c.start(args...) // c.url is empty
}

func TestDevStopsByItself(t *testing.T) {
	t.Parallel()
	dev := (&cli{t: t}).startDev("dev", "--in-process", "--for", "10ms", "--quiet")
	if code := dev.wait(); code != exitOK || !strings.Contains(dev.out.String(), "Stopped: ") {
		t.Errorf("exit code %d\n%s%s", code, dev.out, dev.err)
	}
	if strings.Contains(dev.out.String(), "  ok\n") {
		t.Errorf("--quiet prints deliveries:\n%s", dev.out)
	}
}

func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !children() {
		(&cli{t: t}).startDev("dev", "--data", dir).says("install redis-server or valkey-server")
		return
	}
	first := (&cli{t: t}).startDev("dev", "--data", dir, "--quiet")
	first.says("kept in " + dir)
	c := &cli{t: t, url: "redis://" + find1(t, devURL, first.out.String())}
	c.ok("schedule", "mine", "--id", "kept", "--in", "1h", "hello")
	first.stop()
	first.wait()
	second := (&cli{t: t}).startDev("dev", "--data", dir, "--quiet")
	second.says("kept in " + dir)
	c.url = "redis://" + find1(t, devURL, second.out.String())
	c.ok("show", "mine", "kept")
}

func TestDevRefusesAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, args := range [][]string{{"dev", "--port", port}, {"dev", "--port", port, "--in-process"}} {
		dev := (&cli{t: t}).startDev(args...)
		if code := dev.wait(); code != exitFailure || !strings.Contains(dev.err.String(), "in use") {
			t.Errorf("exit code %d: %s", code, dev.err)
		}
	}
}

func TestServerOfDevDiesWithIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || !children() {
		t.Log("no child process that could be told of its parent's death: nothing to see here")
		return
	}
	cmd, out := (&cli{t: t}).program("dev")
	redistest.Eventually(t, patience, func() (bool, string) { return strings.Contains(out.String(), "  ok\n"), out.String() })
	addr := find1(t, devURL, out.String())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil, "the server still listens at " + addr
	})
	_ = os.RemoveAll(find1(t, devData, out.String()))
}
