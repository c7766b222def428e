package servers_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
)

// systemd is told: 1. READY=1 when the bridge serves, 2. WATCHDOG=1 again and again, 3. nothing while the bridge hangs,
// 4. STOPPING=1 when it stops.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	dir, err := os.MkdirTemp("", "notify") // the path of a socket has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	heard := ""
	// hears waits until a notification with a text arrives. It forgets all notifications up to that one.
	hears := func(text string, within time.Duration) bool {
		t.Helper()
		b := make([]byte, 4096)
		for deadline := time.Now().Add(within); !strings.Contains(heard, text); {
			_ = conn.SetReadDeadline(deadline)
			n, err := conn.Read(b)
			if err != nil {
				return false
			}
			heard += string(b[:n]) + "\n"
		}
		heard = ""
		return true
	}
	// want is like hears, and ends the test if the notification does not arrive.
	want := func(text string) {
		t.Helper()
		if !hears(text, clitest.Patience) {
			t.Fatalf("never told %q: %s", text, heard)
		}
	}
	cmd, out := c.ProgramWith([]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=600000"},
		"serve", "--redis", c.URL, "--prefix", c.Prefix)
	want("READY=1\nSTATUS=serves")
	want("WATCHDOG=1")
	want("WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for hears("WATCHDOG=1", time.Second) { // skip what was sent before the stop, until a second is silent
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	want("WATCHDOG=1")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	want("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
