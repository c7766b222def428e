package servers_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/servers"
	"github.com/duestream/duestream/integration/redistest"
)

// served is a bridge in a process of its own, with its health file.
type served struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *clitest.Buffer
	file string
}

// startServed starts serve with a connection to url and the prefix of c.
func startServed(c *clitest.CLI, url string) *served {
	c.T.Helper()
	s := &served{t: c.T, file: filepath.Join(c.T.TempDir(), "health")}
	s.cmd, s.out = c.ProgramWith([]string{"DUESTREAM_HEALTH_FILE=" + s.file}, "serve", "--redis", url, "--prefix",
		c.Prefix)
	return s
}

// self runs `health --self` beside the bridge, as the health check of the image does, and returns the state that it
// prints, whether it succeeded, and all output for an error message.
func (s *served) self() (v servers.HealthState, healthy bool, said string) {
	s.t.Helper()
	cmd := exec.Command(s.cmd.Path, "health", "--self", "--json")
	cmd.Env = append(os.Environ(), "DUESTREAM_HEALTH_FILE="+s.file)
	var errs clitest.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	_ = json.Unmarshal(out, &v)
	return v, err == nil, string(out) + errs.String() + s.out.String()
}

// becomes waits until self has this result, with a state that is accepts.
func (s *served) becomes(healthy bool, is func(v servers.HealthState) bool) {
	s.t.Helper()
	redistest.Eventually(s.t, clitest.Patience, func() (bool, string) {
		v, got, said := s.self()
		return got == healthy && is(v), said
	})
}

func (s *served) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// whatever accepts any state.
func whatever(servers.HealthState) bool { return true }

// Two regressions. First: 1. Redis was down. 2. The health check of the image asked Redis, and failed. 3. The bridge
// was restarted, although it waited for Redis as it should. Second: 1. A bridge hung. 2. The health check saw the
// heartbeat of another bridge, and succeeded. 3. The bridge hung for ever. Now the check asks only its own process.
func TestHealthOfSelfAsksItsOwnProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := clitest.NewOn(t, server)
	s := startServed(c, c.URL)
	s.becomes(true, func(v servers.HealthState) bool {
		return v.State == "runs" && v.Redis && v.PID == s.cmd.Process.Pid && v.Version == clitest.Version
	})
	c.Serve() // another live bridge

	s.signal(syscall.SIGSTOP)
	s.becomes(false, whatever)
	c.OK("health")
	s.signal(syscall.SIGCONT)
	s.becomes(true, func(v servers.HealthState) bool { return v.Redis })

	server.Stop()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		v, healthy, said := s.self()
		if !healthy {
			t.Fatalf("not healthy while Redis is away: %s", said)
		}
		return !v.Redis, said
	})
	c.Fails(exit.Unavailable, nil, "health")

	s.signal(syscall.SIGKILL)
	s.becomes(false, whatever)
}

// A bridge that has never reached Redis is healthy, because it waits as it should. It removes its health file when it
// stops, and the check then fails.
func TestHealthOfSelfWhileRedisWasNeverThere(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable, Prefix: "p"}
	s := startServed(c, c.URL)
	s.becomes(true, func(v servers.HealthState) bool { return v.State == "starts" && !v.Redis })
	s.signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, s.out)
	}
	if left, _ := filepath.Glob(s.file + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, healthy, said := s.self(); healthy || !strings.Contains(said, "does not exist") {
		t.Errorf("healthy %v: %s", healthy, said)
	}
}

// A bridge delivers although its health file cannot be written, and logs that once.
func TestServeGoesOnWithoutItsHealthFile(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	file := filepath.Join(t.TempDir(), "missing", "health")
	_, out := c.ProgramWith([]string{"DUESTREAM_HEALTH_FILE=" + file}, "serve", "--redis", c.URL, "--prefix", c.Prefix)
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return c.Run("health").Code == exit.OK && strings.Count(out.String(), "cannot write the health file") == 1,
			out.String()
	})
}
