package main

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

	"github.com/duestream/duestream/integration/redistest"
)

// runTests runs the tests of a package.
func runTests(m *testing.M) {
	if signal.Ignored(syscall.SIGHUP) { // nohup: child processes would inherit the ignored signal
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	redistest.SideBySide(6)
	code := redistest.Run(m)
	_ = os.RemoveAll(binaryDir)
	os.Exit(code)
}

func TestMain(m *testing.M) { runTests(m) }

// patience is how long a test waits for something that must happen.
const patience = time.Minute

// testVersion is the version of a program that was built without a version.
const testVersion = "devel"

// unreachable is an address without a server. A command that ends with exit.Invalid there has not touched Redis.
const unreachable = "redis://127.0.0.1:1"

// cli runs commands in this process, with a server and a prefix of the test.
type cli struct {
	t      *testing.T
	s      *redistest.Server
	url    string
	prefix string

	release string // of the program; "" is Version
}

// newCLI returns a CLI with the shared server of the tests, and a prefix of its own.
func newCLI(t *testing.T) *cli { return newCLIOn(t, redistest.Shared(t)) }

// newCLIOn is newCLI on another server.
func newCLIOn(t *testing.T, s *redistest.Server) *cli {
	return &cli{t: t, s: s, url: s.URL(), prefix: s.Prefix(t)}
}

// result is the exit code and the output of a command.
type result struct {
	code     int
	out, err string
}

// run runs a command to its end.
func (c *cli) run(args ...string) result { return c.runIn("", args...) }

// runIn is run with a text on standard input.
func (c *cli) runIn(stdin string, args ...string) result {
	c.t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	code := run(ctx, cmp.Or(c.release, testVersion), c.args(args), strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// args adds the connection flags at the front, because everything after "--" belongs to another program.
func (c *cli) args(args []string) []string {
	var all []string
	if c.url != "" {
		all = append(all, "--redis", c.url)
	}
	if c.prefix != "" {
		all = append(all, "--prefix", c.prefix)
	}
	return append(all, args...)
}

// ok runs a command that must succeed, and returns its output.
func (c *cli) ok(args ...string) string {
	c.t.Helper()
	r := c.run(args...)
	if r.code != exitOK {
		c.t.Fatalf("%q: exit code %d\n%s%s", args, r.code, r.out, r.err)
	}
	return r.out
}

// json runs a command with --json that must succeed, and decodes its output.
func (c *cli) json(into any, args ...string) {
	c.t.Helper()
	decode(c.t, c.ok(append(args, "--json")...), into)
}

// fails runs a command that must end with this code, with all of these texts on standard error.
func (c *cli) fails(code int, says []string, args ...string) result {
	c.t.Helper()
	r := c.run(args...)
	if r.code != code {
		c.t.Errorf("%q: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	for _, text := range says {
		if !strings.Contains(r.err, text) {
			c.t.Errorf("%q: stderr does not say %q:\n%s", args, text, r.err)
		}
	}
	return r
}

// running is a running command.
type running struct {
	t        *testing.T
	out, err *buffer
	stop     context.CancelFunc
	ended    chan int
}

// start starts a command. It is stopped at the end of the test.
func (c *cli) start(args ...string) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: c.t, out: new(buffer), err: new(buffer), stop: cancel, ended: make(chan int, 1)}
	go func() {
		r.ended <- run(ctx, cmp.Or(c.release, testVersion), c.args(args), strings.NewReader(""), r.out, r.err)
	}()
	c.t.Cleanup(func() {
		cancel()
		r.wait()
	})
	return r
}

// wait returns the exit code.
func (r *running) wait() int {
	r.t.Helper()
	select {
	case code := <-r.ended:
		r.ended <- code
		return code
	case <-time.After(time.Minute):
		r.t.Fatalf("the command did not end\n%s%s", r.out, r.err)
		return 0
	}
}

// says waits until the command has printed a text.
func (r *running) says(text string) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() (bool, string) {
		return strings.Contains(r.out.String()+r.err.String(), text), "no " + strconv.Quote(text) + " in\n" +
			r.out.String() + r.err.String()
	})
}

// serve starts a bridge, and waits until it is alive.
func (c *cli) serve() *running {
	c.t.Helper()
	r := c.start("serve")
	redistest.Eventually(c.t, patience, func() (bool, string) {
		h := c.run("health")
		return h.code == exitOK, h.err + r.err.String()
	})
	return r
}

// redis returns a client of the server.
func (c *cli) redis() rueidis.Client { return c.s.Client(c.t) }

// key returns the name of a key of a queue.
func (c *cli) key(queue, name string) string { return c.prefix + ":{" + queue + "}:" + name }

// buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var binaryDir string // directory of the binary, once a test needed it

// binary builds the command and returns its path.
var binary = sync.OnceValues(func() (path string, err error) {
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

// program starts the real binary, for tests that need a process of its own.
func (c *cli) program(args ...string) (*exec.Cmd, *buffer) {
	c.t.Helper()
	return c.programWith(nil, args...)
}

// programWith is Program with additional environment variables.
func (c *cli) programWith(env []string, args ...string) (*exec.Cmd, *buffer) {
	c.t.Helper()
	path, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd, out := exec.Command(path, args...), new(buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = patience // its children may hold its output
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

// eventuallyNumber waits until a command has written a number into a file, and returns it.
func eventuallyNumber(t *testing.T, file string) (n int) {
	t.Helper()
	redistest.Eventually(t, patience, func() (bool, string) {
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && strings.HasSuffix(string(text), "\n"), "it holds " + strconv.Quote(string(text))
	})
	return n
}

// eventuallyGone waits until a process has ended. A zombie counts as ended.
func eventuallyGone(t *testing.T, pid int) {
	t.Helper()
	redistest.Eventually(t, patience, func() (bool, string) {
		return zombie(pid), "process " + strconv.Itoa(pid) + " runs"
	})
}

// decode parses the output of a command with --json. A list is one object per line.
func decode(t *testing.T, text string, into any) {
	t.Helper()
	if reflect.TypeOf(into).Elem().Kind() == reflect.Slice && !strings.HasPrefix(text, "[") {
		text = "[" + strings.ReplaceAll(strings.TrimSpace(text), "\n", ",") + "]"
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
