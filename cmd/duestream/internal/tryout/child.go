package tryout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/child"
)

const (
	readyTimeout = 30 * time.Second // to load the data of the directory
	stopGrace    = 10 * time.Second // to write the data in memory to disk
)

func startChild(ctx context.Context, program string, cfg Config) (*Server, error) {
	s := &Server{Program: program, Data: cfg.Data, Kept: cfg.Data != ""}
	var err error
	if s.Kept {
		if s.Data, err = filepath.Abs(cfg.Data); err == nil {
			err = os.MkdirAll(s.Data, 0o700)
		}
	} else {
		s.Data, err = os.MkdirTemp("", "duestream-dev-")
	}
	if err != nil {
		return nil, fmt.Errorf("directory for data: %w", err)
	}
	for try := 1; ; try++ {
		err = s.launch(ctx, cfg.Port)
		// Another process may take the free port before the server listens on it.
		if err == nil || cfg.Port != 0 || try == 5 || !strings.Contains(err.Error(), "in use") {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.discard())
	}
	return s, nil
}

func (s *Server) launch(ctx context.Context, port int) (err error) {
	if port == 0 {
		if port, err = freePort(); err != nil {
			return err
		}
	}
	// The log goes directly to a file. A pipe through this process would block the server once nobody reads it.
	logName := filepath.Join(s.Data, "server.log")
	log, err := os.Create(logName)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.Data,
		"--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no")
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Data, log, log
	p, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Program, err)
	}
	if err := awaitReady(ctx, address(port), cmd.Process.Pid, p.Done()); err != nil {
		p.Stop(stopGrace)
		return fmt.Errorf("start %s: %w: %s", s.Program, err, lastLine(logName))
	}
	s.Port, s.gone, s.kill = port, p.Done(), p.Kill
	s.stop = func() error {
		p.Stop(stopGrace)
		return s.discard()
	}
	return nil
}

func (s *Server) discard() error {
	if s.Kept {
		return nil
	}
	return os.RemoveAll(s.Data)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", address(0))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// awaitReady returns when the server with this process ID answers PING with PONG. A server does that after it has
// loaded its data.
func awaitReady(ctx context.Context, addr string, pid int, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !answers(addr, pid) {
		select {
		case <-gone:
			return errors.New("the server ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", ctx.Err())
		case <-again.C:
		}
	}
	return nil
}

// answers reports whether the server at addr is ready and has this process ID. If another server holds the port, the
// server that this process started is about to end.
func answers(addr string, pid int) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\nINFO server\r\nQUIT\r\n")); err != nil {
		return false
	}
	lines := bufio.NewScanner(conn)
	ready := lines.Scan() && lines.Text() == "+PONG"
	for ready && lines.Scan() {
		if number, ok := strings.CutPrefix(lines.Text(), "process_id:"); ok {
			return number == strconv.Itoa(pid)
		}
	}
	return false
}

// lastLine returns the line of a log that says why the server ended, or the last line.
func lastLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if strings.Contains(line, "in use") || strings.Contains(strings.ToLower(line), "fatal") {
			return line
		}
	}
	return lines[len(lines)-1]
}
