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

// AtExit makes Run call f at its end. Functions registered later are called earlier. The returned function cancels the
// registration.
func AtExit(f func() error) (remove func()) {
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

// endAtOnce switches off the second that the race detector sleeps at the end of a process, for our child processes. The
// detector sleeps in case another goroutine is about to report a race. Our child processes have stopped their
// goroutines before they end, and each stop that a test waits for would take a second longer.
func endAtOnce() {
	const name, option = "GORACE", "atexit_sleep_ms"
	if options := os.Getenv(name); !strings.Contains(options, option) {
		_ = os.Setenv(name, strings.TrimSpace(options+" "+option+"=0"))
	}
}

// Long skips a test that waits for many seconds if the run is to be quick: `make quick` sets -short.
func Long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("waits for many seconds: make test runs it")
	}
}

// SideBySide raises the number of parallel tests that this process runs at a time. Go runs as many as there are
// processors. That is right for tests that compute, but most of our tests wait. On a machine with more processors,
// SideBySide changes nothing. Call it before [Run].
func SideBySide(tests int) {
	if f := flag.Lookup("test.parallel"); f != nil && runtime.GOMAXPROCS(0) < tests {
		_ = f.Value.Set(strconv.Itoa(tests)) // it is a number
	}
}

// leaked returns an error if goroutines outlive the tests by 8 s. They get that long, because a closed cluster client
// waits for up to 5 s before it closes connections that it replaced shortly before.
func leaked(opts []goleak.Option) error {
	for deadline := time.Now().Add(8 * time.Second); ; {
		err := goleak.Find(opts...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// endAll calls the registered functions, the latest first, and returns the first error. It counts the IDs down; an ID
// whose registration was cancelled has no function. It does not hold the lock during a call, because the function may
// cancel another registration.
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
