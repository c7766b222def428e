package redistest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

const howToGetClock = `no server whose clock can be stepped. It needs Linux, a C compiler on the PATH (apt-get install gcc libc6-dev) and
redis-server or valkey-server on the PATH (apt-get install redis-server); a container's clock is the machine's. What was tried:
`

//go:embed clock/step.c
var clockSource string

// Clock is the wall clock of a server of a test's own. The server's monotonic clock runs on as it is, as with a real step.
type Clock struct {
	t    testing.TB
	file *os.File
	mu   sync.Mutex
	by   time.Duration
}

// OwnClock returns what [Own] does, as a child process whose wall clock the test may step while it runs. It fails the test, saying what
// to do, when that cannot be had.
func OwnClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	dir := t.TempDir() // before our cleanup is registered, so that it is removed after the server is gone
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

// Step moves the clock, forward or back, by whole seconds.
func (c *Clock) Step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += by.Truncate(time.Second)
	c.write()
}

// By returns how far the server's clock is ahead of this process's.
func (c *Clock) By() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}

// write puts the step where the server reads it: in one write of eight bytes, so that no half of it is ever seen.
func (c *Clock) write() {
	seconds := binary.NativeEndian.AppendUint64(nil, uint64(int64(c.by/time.Second)))
	if _, err := c.file.WriteAt(seconds, 0); err != nil {
		c.t.Errorf("redistest: step the clock: %v", err)
	}
}

// clockLibrary compiles the library, once per process.
var clockLibrary = sync.OnceValues(func() (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("this is %s", runtime.GOOS)
	}
	if _, err := exec.LookPath("cc"); err != nil {
		if err := installCompiler(); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp("", "duestream-redistest-clock-")
	if err != nil {
		return "", err
	}
	atExit(func() error { return os.RemoveAll(dir) })
	source, library := filepath.Join(dir, "step.c"), filepath.Join(dir, "step.so")
	if err := os.WriteFile(source, []byte(clockSource), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the clock: %w\n%s", err, out)
	}
	return library, nil
})

// installCompiler installs Debian's C compiler. Test processes take turns; the later ones find it done.
func installCompiler() error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New("no cc on the PATH, and installing one needs apt-get and root")
	}
	return withMachineLock(func() error {
		if _, err := exec.LookPath("cc"); err == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
		defer cancel()
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		return aptGet(ctx, "install", "-y", "--no-install-recommends", "gcc", "libc6-dev")
	})
}
