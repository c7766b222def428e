package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

const (
	readyTimeout = 30 * time.Second // includes loading an append-only file
	stopTimeout  = 20 * time.Second
)

// serverBinary returns redis-server or valkey-server from the PATH, or "" if there is none.
func serverBinary() string {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// process is a server in a child process. On Linux it dies with the test process.
type process struct {
	binary  string
	config  string // a file; "" means none
	args    []string
	env     []string // in addition to that of this process
	port    int
	dataDir string
	opt     rueidis.ClientOption // with which awaitReady connects: user, password and TLS; the address is added

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{} // closed when cmd has been reaped
}

// startProcess starts the program on a free port. By default it stores nothing on disk; args may change that.
func startProcess(binary, dataDir string, args ...string) (*Server, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		p := &process{binary: binary, args: args, port: port, dataDir: dataDir}
		if err = p.start(); err == nil {
			return serverOf(p, port, "process", "process", "")
		}
		if attempt == startAttempts || !strings.Contains(err.Error(), "in use") {
			return nil, err
		}
	}
}

// serverOf returns the Server of a started instance. If the server does not answer, it ends the instance.
func serverOf(inst instance, port int, origin, short, image string) (*Server, error) {
	s, err := newServer("redis://127.0.0.1:"+strconv.Itoa(port), inst)
	if err == nil {
		s.origin, s.short, s.image = origin, short, image
		err = s.identify()
	}
	if err != nil {
		return nil, errors.Join(err, inst.end())
	}
	return s, nil
}

// freePort returns a port of 127.0.0.1 outside the ranges that systems use for outgoing connections, so that no
// connection takes the port while its server is down.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free port between 20000 and 32000 on 127.0.0.1")
}

func (p *process) dir() string { return p.dataDir }

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return errors.New("it is running already")
	}
	logPath := filepath.Join(p.dataDir, "server.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	defaults := []string{
		"--port", strconv.Itoa(p.port), "--bind", "127.0.0.1", "--dir", p.dataDir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}
	if p.config != "" { // the program expects its configuration file as the first argument
		defaults = append([]string{p.config}, defaults...)
	}
	cmd := exec.Command(p.binary, append(defaults, p.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = p.dataDir
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = childAttr()
	started, gone := make(chan error, 1), make(chan struct{})
	go runChild(cmd, started, gone)
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.gone = cmd, gone
	opt := p.opt
	opt.InitAddress = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))}
	if err := awaitReady(opt, cmd.Process.Pid, readyTimeout, gone); err != nil {
		p.signalAndWait(syscall.SIGKILL)
		return fmt.Errorf("%w; the end of its log:\n%s", err, tail(logPath, 2000))
	}
	return nil
}

// runChild starts and reaps the child from one thread that lives as long as the child. The kernel binds the
// parent-death signal to the thread that started the child, and not to the process.
func runChild(cmd *exec.Cmd, started chan<- error, gone chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // its log says how it ended
	}
	close(gone)
}

// running reports whether there is a child that has not been reaped. The caller holds mu.
func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.gone:
		return false
	default:
		return true
	}
}

func (p *process) kill() error { return p.finish(syscall.SIGKILL) }
func (p *process) stop() error { return p.finish(syscall.SIGTERM) }

func (p *process) finish(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return errors.New("it is not running")
	}
	return p.signalAndWait(sig)
}

// signalAndWait returns when the child is reaped. The caller holds mu.
func (p *process) signalAndWait(sig syscall.Signal) error {
	_ = p.cmd.Process.Signal(sig) // an error means that it has ended already
	if sig != syscall.SIGKILL {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // a paused process does not receive SIGTERM
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.gone:
		return nil
	case <-timeout.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.gone
	return fmt.Errorf("still there %v after %v, so it was killed", stopTimeout, sig)
}

func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return errors.New("it is not running")
	}
	return p.cmd.Process.Signal(sig)
}

func (p *process) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	return p.signalAndWait(syscall.SIGKILL)
}

// tail returns the last n bytes of a file, or the error if it cannot be read.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return string(b)
}
