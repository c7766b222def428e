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

// atExit has f called when Run ends, the latest first. The returned function takes it back.
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

// Main is a whole TestMain: it runs the tests, ends the servers that they started, and exits with status 1 when a test
// failed or a goroutine outlived the tests. Further options are for goroutines that the package cannot end.
func Main(m *testing.M, opts ...goleak.Option) { os.Exit(Run(m, opts...)) }

// Run does what [Main] does and returns the exit status, for a TestMain that has more to do.
func Run(m *testing.M, opts ...goleak.Option) int {
	endAtOnce()
	code := m.Run()
	if err := endAll(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test often leaves goroutines, which are not the news
	}
	if err := leaked(opts); err != nil {
		fmt.Fprintln(os.Stderr, "redistest: goroutines outlived the tests:", err)
		return 1
	}
	return 0
}

// endAtOnce has the race detector of child processes not wait when they end: it sleeps for a second in each, in case that another
// goroutine is about to report a race. Our children have stopped theirs by then, and every stop that a test waits for would last
// so much longer.
func endAtOnce() {
	const name, option = "GORACE", "atexit_sleep_ms"
	if options := os.Getenv(name); !strings.Contains(options, option) {
		_ = os.Setenv(name, strings.TrimSpace(options+" "+option+"=0"))
	}
}

// SideBySide has so many parallel tests of this process run at a time, where the command line does not say how many. Go runs as
// many as there are processors, which is right for tests that compute; most of ours wait. Call it before [Run].
func SideBySide(tests int) {
	if f := flag.Lookup("test.parallel"); f != nil && runtime.GOMAXPROCS(0) < tests {
		_ = f.Value.Set(strconv.Itoa(tests)) // it is a number
	}
}

// leaked looks for goroutines for some seconds: a cluster client that was closed still waits to close connections that it had
// replaced shortly before, and that takes it 5 s.
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

// IgnoreServers are the options with which a test may look for leaked goroutines of its own while servers of this
// package are running.
func IgnoreServers() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/duestream/duestream/integration/redistest.runChild"),
		goleak.IgnoreAnyFunction("github.com/duestream/duestream/integration/redistest.(*helper).read"),
	}
}
