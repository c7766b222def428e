// Package tryout starts a Redis to try duestream without installing anything: a child process if redis-server or
// valkey-server is on the PATH, else a server inside this process.
//
// Invariants, held by tests of the command:
//   - a server without --data leaves no files behind (TestDevShowsADeliveryWithinTenSecondsAndLeavesNothingBehind);
//   - the server that answers on the port is the one that was started (TestDevRefusesAPortThatIsTaken).
package tryout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"

	"github.com/alicebob/miniredis/v2"
)

// Config configures the server to start.
type Config struct {
	Port      int    // 0 = any free port
	Data      string // data directory of a child process; "" = a temporary directory
	InProcess bool   // start the server inside this process, even if a server program is found
	Program   string // path of redis-server or valkey-server; "" = the one on the PATH
}

// Server is a running server on 127.0.0.1.
type Server struct {
	Port    int
	Program string // path of the child's program; "" = the server is inside this process
	Data    string // data directory; "" = in memory only
	Kept    bool   // Data outlives the server

	gone <-chan struct{}
	stop func() error
	kill func()
}

// URL returns the URL for clients.
func (s *Server) URL() string { return "redis://" + address(s.Port) }

// Gone is closed when a child process has ended, on request or by itself.
func (s *Server) Gone() <-chan struct{} { return s.gone }

// Stop ends the server, and deletes its data unless it is kept.
func (s *Server) Stop() error { return s.stop() }

// Restart kills a child process as a crash would, calls meanwhile, and starts it again on the same port with the same
// data. If the second start fails, Stop still cleans up.
func (s *Server) Restart(ctx context.Context, meanwhile func() error) error {
	s.kill()
	if err := meanwhile(); err != nil {
		return err
	}
	return s.launch(ctx, s.Port)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Start starts a server, and returns when it answers.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Program == "" {
		cfg.Program = Find()
	}
	if cfg.Program != "" && !cfg.InProcess {
		return startChild(ctx, cfg.Program, cfg)
	}
	if cfg.Data != "" {
		return nil, errors.New("data cannot be kept by the server inside this process: install redis-server or valkey-server")
	}
	return startInProcess(cfg.Port)
}

// Find returns the path of a server program on the PATH, or "".
func Find() string {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func startInProcess(port int) (*Server, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(address(port)); err != nil {
		return nil, fmt.Errorf("start a server on port %d: %w", port, err)
	}
	m.ClockTTL(true) // keys expire in real time
	port, err := strconv.Atoi(m.Port())
	s := &Server{Port: port, gone: make(chan struct{})}
	s.stop = func() error { m.Close(); return nil }
	return s, err
}
