package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/duestream/duestream/bridge"
)

// EnvURL is the environment variable with the URL of the server that New uses, in the form of bridge.Dial.
const EnvURL = "DUESTREAM_TEST_REDIS_URL"

const childReady = 10 * time.Second // the longest time in which a child process begins to answer

// server is the server of a kit.
type server struct {
	name     string // for people
	url      string
	isOwn    bool // only kits of this process use it
	hasClock bool // setTime sets its clock
	setTime  func(time.Time)
	end      func()
}

// openServer opens the server that a configuration chooses.
func openServer(ctx context.Context, cfg Config) (*server, error) {
	url := cfg.URL
	if url == "" && !cfg.InProcess {
		url = os.Getenv(EnvURL)
	}
	switch program := programOnPath(); {
	case url != "":
		return &server{name: bridge.Redact(url), url: url, setTime: func(time.Time) {}, end: func() {}}, nil
	case program != "" && !cfg.InProcess:
		return borrowChild(ctx, program)
	}
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start a server in this process: %w", err)
	}
	return &server{name: "server in this process (miniredis)", url: "redis://" + m.Addr(), isOwn: true, hasClock: true,
		setTime: m.SetTime, end: m.Close}, nil
}

func programOnPath() string {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// children is the child process that all kits of this process share. It ends with the last kit that uses it.
var children struct {
	mu    sync.Mutex
	users int
	child *child
}

func borrowChild(ctx context.Context, program string) (*server, error) {
	children.mu.Lock()
	defer children.mu.Unlock()
	if children.child == nil {
		started, err := startChild(ctx, program)
		if err != nil {
			return nil, err
		}
		children.child = started
	}
	children.users++
	return &server{name: "child process " + program, url: children.child.url(), isOwn: true, setTime: func(time.Time) {},
		end: sync.OnceFunc(func() {
			children.mu.Lock()
			defer children.mu.Unlock()
			if children.users--; children.users == 0 {
				children.child.stop()
				children.child = nil
			}
		})}, nil
}

// child is a server in a child process. It listens on a socket in its directory, so it needs no free port, and no other
// machine can reach it.
type child struct {
	dir     string
	process *os.Process
	gone    chan struct{}
}

func (c *child) url() string { return "unix://" + filepath.Join(c.dir, "socket") }

func startChild(ctx context.Context, program string) (*child, error) {
	dir, err := os.MkdirTemp("", "duestream-")
	if err != nil {
		return nil, err
	}
	c := &child{dir: dir, gone: make(chan struct{})}
	log := filepath.Join(dir, "log")
	cmd := exec.Command(program, "--port", "0", "--unixsocket", filepath.Join(dir, "socket"), "--dir", dir,
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", log)
	cmd.SysProcAttr = childAttr()
	started := make(chan error, 1)
	go func() {
		defer close(c.gone)
		runtime.LockOSThread() // the child ends with the thread that starts it, so this thread must live as long
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its end is all that counts
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), os.RemoveAll(dir))
	}
	c.process = cmd.Process
	if err := c.awaitReady(ctx); err != nil {
		text, _ := os.ReadFile(log) // without a log, the error alone must do
		c.stop()
		return nil, fmt.Errorf("start %s: %w: %s", program, err, strings.TrimSpace(string(text)))
	}
	return c, nil
}

// awaitReady returns when the server answers.
func (c *child) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, childReady)
	defer cancel()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		if _, err := os.Stat(filepath.Join(c.dir, "socket")); err == nil {
			r, err := bridge.Dial(ctx, c.url())
			if err == nil {
				r.Close()
				return nil
			}
		}
		select {
		case <-c.gone:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return errors.New("it does not answer")
		case <-again.C:
		}
	}
}

// stop kills the server, because nothing of its data is needed.
func (c *child) stop() {
	_ = c.process.Kill() // an error says that it has ended already
	<-c.gone
	_ = os.RemoveAll(c.dir) // the directory for temporary files is emptied by the system
}
