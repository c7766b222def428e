package redistest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

const howToGetClock = `no server whose clock can be stepped. It needs Linux, a C compiler on the PATH (apt-get install gcc
libc6-dev) and redis-server or valkey-server on the PATH (apt-get install redis-server); a container's clock is the machine's. What was tried:
`

// Clock is the wall clock of a server that belongs to one test. The server's monotonic clock is not affected, as with
// a real step of a clock.
type Clock struct {
	t    testing.TB
	file *os.File // from which the preloaded library reads the step
	mu   sync.Mutex
	by   time.Duration // sum of all steps
}

// OwnClock starts a server of the test's own in a child process. The test may step the server's wall clock while it
// runs. If that is not possible, OwnClock fails the test and says what to do.
func OwnClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	dir := t.TempDir() // before the server's cleanup is registered, so that it is removed after the server has ended
	library, err := clockLibrary()
	if err != nil {
		t.Fatalf("redistest: %s%v", howToGetClock, err)
	}
	file, err := os.Create(filepath.Join(dir, "clock"))
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() { file.Close() })
	c := &Clock{t: t, file: file}
	c.write()
	s, err := startClocked(dir, args, "LD_PRELOAD="+library, "DUESTREAM_TEST_CLOCK="+file.Name())
	if err != nil {
		t.Fatalf("redistest: %s%v", howToGetClock, err)
	}
	s.owned(t)
	return s, c
}

func startClocked(dir string, args []string, env ...string) (*Server, error) {
	if serverBinary() == "" {
		if err := installServer(); err != nil {
			return nil, err
		}
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &process{binary: serverBinary(), args: args, env: env, port: port, dataDir: dir}
	if err := p.start(); err != nil {
		return nil, err
	}
	return serverOf(p, port, "process with a clock of its own", "process", "")
}

// Step moves the clock forward or back, by whole seconds.
func (c *Clock) Step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += by.Truncate(time.Second)
	c.write()
}

// By returns how far the server's clock is ahead of this process's clock.
func (c *Clock) By() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}

// write puts the sum of the steps into the file that the server's library reads. It is one write of eight bytes, so
// that the server never reads half of a number.
func (c *Clock) write() {
	seconds := binary.NativeEndian.AppendUint64(nil, uint64(int64(c.by/time.Second)))
	if _, err := c.file.WriteAt(seconds, 0); err != nil {
		c.t.Errorf("redistest: step the clock: %v", err)
	}
}

// clockLibrary returns the path of the library that steps a server's clock. The first call compiles the library.
var clockLibrary = sync.OnceValues(func() (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("this is %s", runtime.GOOS)
	}
	dir, err := os.MkdirTemp("", "duestream-redistest-clock-")
	if err != nil {
		return "", err
	}
	AtExit(func() error { return os.RemoveAll(dir) })
	library := filepath.Join(dir, "step.so")
	return library, buildLibrary("step.c", library)
})
