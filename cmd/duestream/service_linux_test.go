package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// 1. systemd waits for READY=1 of a bridge that serves, and 2. for signs of life, 3. a bridge that hangs gives none, 4. one that
// stops says so.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	dir, err := os.MkdirTemp("", "notify") // the name of a socket has 108 bytes at most
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
	want := func(text string) {
		t.Helper()
		if !hears(text, patience) {
			t.Fatalf("never told %q: %s", text, heard)
		}
	}
	cmd, out := c.programWith([]string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=600000"},
		"serve", "--redis", c.url, "--prefix", c.prefix)
	want("READY=1\nSTATUS=serves")
	want("WATCHDOG=1")
	want("WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for hears("WATCHDOG=1", time.Second) { // what was sent before
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	want("WATCHDOG=1")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	want("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
