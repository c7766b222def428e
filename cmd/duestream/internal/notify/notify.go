// Package notify tells the service manager the state of this process. It speaks sd_notify of systemd: text datagrams
// to a socket that the environment names. Without that socket nothing is sent.
package notify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is a service manager that asked for notifications. The methods of a nil Manager do nothing. A Manager is
// safe for concurrent use.
type Manager struct {
	addr     *net.UnixAddr
	watchdog time.Duration // longest time between two Alive; 0 = no watchdog
}

// FromEnvironment returns the manager that NOTIFY_SOCKET names, or nil if there is none. It removes the variables
// from the environment, so that no child process can notify in the name of this one.
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
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	return m, nil
}

// Watchdog returns the longest time between two Alive that the manager accepts, or 0 if it has no watchdog.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog
}

// States for Tell.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1" // to be told at least once within Watchdog
)

// Status returns the state that shows one line of text to people.
func Status(text string) string {
	return "STATUS=" + strings.Join(strings.Fields(text), " ")
}

// Tell sends states. It blocks for at most a second.
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
