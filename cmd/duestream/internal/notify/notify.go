// Package notify tells the service manager how this process is: sd_notify of systemd, which is datagrams of text to a socket that
// it names in the environment. Where no service manager asked for it, nothing is sent.
package notify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is the service manager that wants to be told. Its methods do nothing when it is nil; it is safe for concurrent use.
type Manager struct {
	addr  *net.UnixAddr
	every time.Duration // within which it wants a sign of life; 0 = it does not
}

// FromEnvironment returns the manager that NOTIFY_SOCKET names; nil when there is none. From then on the environment does not
// name it any more, so that no command which this process starts speaks in its place.
func FromEnvironment() (*Manager, error) {
	socket, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	if socket == "" {
		return nil, nil
	}
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET %q: must be a path, or a name after @", socket)
	}
	m := &Manager{addr: &net.UnixAddr{Name: socket, Net: "unixgram"}}
	if usec != "" && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 {
			return m, fmt.Errorf("WATCHDOG_USEC %q: must be a number of microseconds", usec)
		}
		m.every = time.Duration(n) * time.Microsecond
	}
	return m, nil
}

// Watchdog returns within which time the manager wants a sign of life; 0: it does not.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.every
}

// The states that are told.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1" // within each Watchdog
)

// Status is a text for people, one line.
func Status(text string) string {
	return "STATUS=" + strings.Join(strings.Fields(text), " ")
}

// Tell sends states, and waits for a second at most.
func (m *Manager) Tell(states ...string) error {
	if m == nil || len(states) == 0 {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, m.addr)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(strings.Join(states, "\n"))); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
