// Package clitest runs the commands of duestream in tests: in this process, or as a program of its own.
package clitest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// Main runs the tests of a package.
func Main(m *testing.M) {
	if signal.Ignored(syscall.SIGHUP) { // under nohup, child processes would inherit the ignored signal
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	redistest.SideBySide(6)
	code := redistest.Run(m)
	_ = os.RemoveAll(binaryDir)
	os.Exit(code)
}

// Patience is how long a test waits for something that must happen.
const Patience = time.Minute

// longestRun is the time after which a command counts as hanging. With the race detector on a slow machine, a command
// with an input of 32 MiB takes more than a minute.
const longestRun = 5 * time.Minute

// Version is the version of a program that was built without a version.
const Version = "devel"

// Unreachable is an address without a server. A command that ends with exit.Invalid there has not touched Redis.
const Unreachable = "redis://127.0.0.1:1"

// CLI runs commands in this process, with a server and a prefix of the test.
type CLI struct {
	T      *testing.T
	Server *redistest.Server
	URL    string // --redis of each command; not given if empty
	Prefix string // --prefix of each command; not given if empty

	Release string // release of the program; Version if empty
}

// New returns a CLI with the shared server of the tests, and a prefix of its own.
func New(t *testing.T) *CLI { return NewOn(t, redistest.Shared(t)) }

// NewOn is like New, but with the given server.
func NewOn(t *testing.T, s *redistest.Server) *CLI {
	return &CLI{T: t, Server: s, URL: s.URL(), Prefix: s.Prefix(t)}
}

// Result is the exit code and the output of a command.
type Result struct {
	Code     int
	Out, Err string
}

// Run runs a command to its end.
func (c *CLI) Run(args ...string) Result { return c.RunIn("", args...) }

// RunIn is like Run, with a text on standard input.
func (c *CLI) RunIn(stdin string, args ...string) Result {
	c.T.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(c.T.Context(), longestRun)
	defer cancel()
	code := command.Run(ctx, cmp.Or(c.Release, Version), c.Args(args), strings.NewReader(stdin), &out, &errOut)
	return Result{code, out.String(), errOut.String()}
}

// Args returns args with --redis and --prefix in front of them. Behind args they could be arguments of another program,
// which follow "--".
func (c *CLI) Args(args []string) []string {
	var all []string
	if c.URL != "" {
		all = append(all, "--redis", c.URL)
	}
	if c.Prefix != "" {
		all = append(all, "--prefix", c.Prefix)
	}
	return append(all, args...)
}

// OK runs a command that must succeed, and returns its output.
func (c *CLI) OK(args ...string) string {
	c.T.Helper()
	r := c.Run(args...)
	if r.Code != exit.OK {
		c.T.Fatalf("%q: exit code %d\n%s%s", args, r.Code, r.Out, r.Err)
	}
	return r.Out
}

// JSON runs a command with --json that must succeed, and decodes its output into a pointer.
func (c *CLI) JSON(into any, args ...string) {
	c.T.Helper()
	Decode(c.T, c.OK(append(args, "--json")...), into)
}

// Fails runs a command that must end with this code, with all of these texts on standard error.
func (c *CLI) Fails(code int, says []string, args ...string) Result {
	c.T.Helper()
	r := c.Run(args...)
	if r.Code != code {
		c.T.Errorf("%q: exit code %d, want %d\n%s%s", args, r.Code, code, r.Out, r.Err)
	}
	for _, text := range says {
		if !strings.Contains(r.Err, text) {
			c.T.Errorf("%q: stderr does not say %q:\n%s", args, text, r.Err)
		}
	}
	return r
}

// Running is a running command.
type Running struct {
	T        *testing.T
	Out, Err *Buffer
	Stop     context.CancelFunc
	ended    chan int
}

// Start starts a command. It is stopped at the end of the test.
func (c *CLI) Start(args ...string) *Running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Running{T: c.T, Out: new(Buffer), Err: new(Buffer), Stop: cancel, ended: make(chan int, 1)}
	go func() {
		r.ended <- command.Run(ctx, cmp.Or(c.Release, Version), c.Args(args), strings.NewReader(""), r.Out, r.Err)
	}()
	c.T.Cleanup(func() {
		cancel()
		r.Wait()
	})
	return r
}

// Wait waits until the command ends, and returns its exit code.
func (r *Running) Wait() int {
	r.T.Helper()
	select {
	case code := <-r.ended:
		r.ended <- code // for the next call of Wait
		return code
	case <-time.After(time.Minute):
		r.T.Fatalf("the command did not end\n%s%s", r.Out, r.Err)
		return 0
	}
}

// Says waits until the command has printed a text on standard output or standard error.
func (r *Running) Says(text string) {
	r.T.Helper()
	redistest.Eventually(r.T, Patience, func() (bool, string) {
		return strings.Contains(r.Out.String()+r.Err.String(), text), "no " + strconv.Quote(text) + " in\n" +
			r.Out.String() + r.Err.String()
	})
}

// Serve starts a bridge, and waits until it is alive.
func (c *CLI) Serve() *Running {
	c.T.Helper()
	r := c.Start("serve")
	redistest.Eventually(c.T, Patience, func() (bool, string) {
		h := c.Run("health")
		return h.Code == exit.OK, h.Err + r.Err.String()
	})
	return r
}

// Redis returns a client of the server.
func (c *CLI) Redis() rueidis.Client { return c.Server.Client(c.T) }

// Key returns the name of a key of a queue, such as "due" or "stream", on partition 0.
func (c *CLI) Key(queue, name string) string { return c.Prefix + ":{" + queue + "}:" + name }

// Buffer is a bytes.Buffer for concurrent use.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var binaryDir string // directory of the binary; empty until a test needs the binary

// Binary builds the command and returns its path.
var Binary = sync.OnceValues(func() (path string, err error) {
	if binaryDir, err = os.MkdirTemp("", "duestream-cmd-"); err != nil {
		return "", err
	}
	path = filepath.Join(binaryDir, "duestream")
	build := exec.Command("go", "build", "-o", path, "github.com/duestream/duestream/cmd/duestream")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// Program starts the real binary, without the connection flags of c, for tests that need a process of its own. Its
// output and its errors are in one buffer. The process is killed at the end of the test.
func (c *CLI) Program(args ...string) (*exec.Cmd, *Buffer) {
	c.T.Helper()
	return c.ProgramWith(nil, args...)
}

// ProgramWith is like Program, with additional environment variables.
func (c *CLI) ProgramWith(env []string, args ...string) (*exec.Cmd, *Buffer) {
	c.T.Helper()
	path, err := Binary()
	if err != nil {
		c.T.Fatal(err)
	}
	cmd, out := exec.Command(path, args...), new(Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = Patience // its children may hold its output
	if err := cmd.Start(); err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

// EventuallyNumber waits until a command has written a number into a file, and returns it.
func EventuallyNumber(t *testing.T, file string) (n int) {
	t.Helper()
	redistest.Eventually(t, Patience, func() (bool, string) {
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && strings.HasSuffix(string(text), "\n"), "it holds " + strconv.Quote(string(text))
	})
	return n
}

// EventuallyGone waits until a process has ended. A zombie counts as ended.
func EventuallyGone(t *testing.T, pid int) {
	t.Helper()
	redistest.Eventually(t, Patience, func() (bool, string) {
		return Zombie(pid), "process " + strconv.Itoa(pid) + " runs"
	})
}

// Decode parses the output of a command with --json. Into a slice it decodes one object per line.
func Decode(t *testing.T, text string, into any) {
	t.Helper()
	if reflect.TypeOf(into).Elem().Kind() == reflect.Slice && !strings.HasPrefix(text, "[") {
		text = "[" + strings.ReplaceAll(strings.TrimSpace(text), "\n", ",") + "]"
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// Zombie reports whether a process has ended, even if its parent has not waited for it yet.
func Zombie(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	state := strings.TrimSpace(string(out))
	return err != nil || state == "" || strings.HasPrefix(state, "Z")
}
