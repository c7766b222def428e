package redistest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var exits struct {
	mu   sync.Mutex
	next int
	fns  map[int]func() error
}

// atExit makes Run call f at its end, the latest function first. The returned function cancels that.
func atExit(f func() error) (remove func()) {
	exits.mu.Lock()
	defer exits.mu.Unlock()
	if exits.fns == nil {
		exits.fns = map[int]func() error{}
	}
	id := exits.next
	exits.next++
	exits.fns[id] = f
	return func() {
		exits.mu.Lock()
		defer exits.mu.Unlock()
		delete(exits.fns, id)
	}
}

// Main is a complete TestMain. It runs the tests, ends the servers that they started, and exits with status 1 when a
// test failed or a goroutine outlived the tests. The options are for goroutines that the package cannot end.
func Main(m *testing.M, opts ...goleak.Option) { os.Exit(Run(m, opts...)) }

// Run does the same as [Main] and returns the exit status, for a TestMain that has more to do.
func Run(m *testing.M, opts ...goleak.Option) int {
	endAtOnce()
	code := m.Run()
	if err := endAll(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test often leaves goroutines, and they are not its cause
	}
	if err := leaked(opts); err != nil {
		fmt.Fprintln(os.Stderr, "redistest: goroutines outlived the tests:", err)
		return 1
	}
	return 0
}

// endAtOnce keeps the race detector of child processes from waiting when they end. It sleeps for a second in each, in
// case another goroutine is about to report a race. Our children have stopped their goroutines by then, and every
// stop that a test waits for would take that much longer.
func endAtOnce() {
	const name, option = "GORACE", "atexit_sleep_ms"
	if options := os.Getenv(name); !strings.Contains(options, option) {
		_ = os.Setenv(name, strings.TrimSpace(options+" "+option+"=0"))
	}
}

// SideBySide sets how many parallel tests of this process run at a time, if the command line does not say it. Go runs
// as many as there are processors. That is right for tests that compute, but most of our tests wait. Call it before
// [Run].
func SideBySide(tests int) {
	if f := flag.Lookup("test.parallel"); f != nil && runtime.GOMAXPROCS(0) < tests {
		_ = f.Value.Set(strconv.Itoa(tests)) // it is a number
	}
}

// leaked looks for goroutines for some seconds. A closed cluster client waits for up to 5 s before it closes
// connections that it replaced shortly before.
func leaked(opts []goleak.Option) error {
	for deadline := time.Now().Add(8 * time.Second); ; {
		err := goleak.Find(opts...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func endAll() error {
	var first error
	for {
		exits.mu.Lock()
		exits.next--
		f, left := exits.fns[exits.next], exits.next > 0
		delete(exits.fns, exits.next)
		exits.mu.Unlock()
		if f != nil {
			if err := f(); err != nil && first == nil {
				first = err
			}
		}
		if !left {
			return first
		}
	}
}

// IgnoreServers returns options for a test that looks for its own leaked goroutines while servers of this package
// run.
func IgnoreServers() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/duestream/duestream/integration/redistest.runChild"),
		goleak.IgnoreAnyFunction("github.com/duestream/duestream/integration/redistest.(*helper).read"),
	}
}
