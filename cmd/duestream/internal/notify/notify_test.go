package notify

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// manager returns a socket that takes the notifications of a service, as the socket of systemd does, and its path.
func manager(t *testing.T) (*net.UnixConn, string) {
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
	return conn, path
}

// hears returns the next notification that arrives at the socket.
func hears(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 4096)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// A service that systemd has started tells it its state. The variables are removed from the environment, so that the
// commands that a worker starts cannot speak for the service.
func TestManagerIsTold(t *testing.T) {
	conn, path := manager(t)
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	m, err := FromEnvironment()
	if err != nil || m.Watchdog() != 3*time.Second {
		t.Fatal(m, err)
	}
	if err := m.Tell(Ready, Status("serves\n all\tqueues")); err != nil {
		t.Fatal(err)
	}
	if got := hears(t, conn); got != "READY=1\nSTATUS=serves all queues" {
		t.Errorf("%q", got)
	}
	if os.Getenv("NOTIFY_SOCKET")+os.Getenv("WATCHDOG_USEC") != "" {
		t.Error("commands that this process starts could speak in its place")
	}
	_ = conn.Close()
	if err := m.Tell(Alive); err == nil {
		t.Error("nobody heard, and that was no error")
	}
}

// A socket name that begins with @ is an abstract socket, without a file.
func TestManagerWithoutAFileIsTold(t *testing.T) {
	name := "@duestream-" + strconv.Itoa(os.Getpid())
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Logf("this system has no such sockets: %v", err)
		return
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	m, err := FromEnvironment()
	if err != nil || m.Tell(Stopping) != nil || hears(t, conn) != Stopping {
		t.Error(m, err)
	}
}

// Without NOTIFY_SOCKET there is no manager, and the methods of a nil manager do nothing.
func TestNobodyWantsToBeTold(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "1000")
	m, err := FromEnvironment()
	if m != nil || err != nil || m.Watchdog() != 0 || m.Tell(Ready) != nil {
		t.Error(m, err)
	}
}

// A value that cannot be used is an error. A watchdog that is meant for another process is ignored.
func TestOddEnvironments(t *testing.T) {
	_, path := manager(t)
	for _, c := range []struct {
		socket, usec, pid string
		fails             bool
		watchdog          time.Duration
	}{
		{path, "1000000", "", false, time.Second},
		{path, "1000000", "1", false, 0}, // the watchdog of another process
		{path, "soon", "", true, 0},
		{path, "-5", "", true, 0},
		{"relative", "", "", true, 0},
	} {
		t.Setenv("NOTIFY_SOCKET", c.socket)
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if m, err := FromEnvironment(); err != nil != c.fails || m.Watchdog() != c.watchdog {
			t.Errorf("%+v: %v, %v", c, m.Watchdog(), err)
		}
	}
}
