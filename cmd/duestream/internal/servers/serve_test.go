package servers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// serve makes a message ready, shows up in health, stats, top and its log under its host, process and version, and
// stops with exit code 0. Every line of its log is JSON.
func TestServeDeliversAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	bridge := c.Serve()
	c.OK("schedule", "q", "--in", "50ms", "--id", "one", "hello")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.Run("show", "q", "one", "--json").Out
		return strings.Contains(out, `"ready"`), out
	})
	var health struct {
		Healthy bool               `json:"healthy"`
		Bridges []heartbeat.Health `json:"bridges"`
	}
	c.JSON(&health, "health")
	if !health.Healthy || len(health.Bridges) != 1 || !health.Bridges[0].Fresh || health.Bridges[0].ID == "" {
		t.Errorf("health %+v", health)
	}
	// An upgrade must be visible: the hosts, processes and versions of bridges.
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	self, wrote := health.Bridges[0], lua.NewIdentity(host, os.Getpid(), clitest.Version)
	if self.Host != wrote.Host || self.PID != wrote.PID || self.Version != wrote.Version ||
		time.Since(time.UnixMilli(self.Started)).Abs() > 10*time.Minute {
		t.Errorf("health says %+v", self)
	}
	name := fmt.Sprintf("%s/%d %s", human.OneLine(wrote.Host, 24), wrote.PID, human.OneLine(wrote.Version, 24))
	for _, look := range []string{"stats", "top --once"} {
		if out := c.OK(strings.Fields(look)...); !strings.Contains(out, "bridges alive 1: "+name) {
			t.Errorf("%s does not name %q:\n%s", look, name, out)
		}
	}
	if out := c.OK("health"); !strings.Contains(out, wrote.Host) || !strings.Contains(out, self.ID) ||
		!strings.Contains(out, wrote.Version) {
		t.Errorf("health says\n%s", out)
	}
	if !strings.Contains(bridge.Err.String(), fmt.Sprintf(`"version":%q,"host":%q,"pid":%d,"bridge":%q`, clitest.Version,
		wrote.Host, wrote.PID, self.ID)) {
		t.Errorf("the log does not say who starts:\n%s", bridge.Err)
	}
	bridge.Stop()
	if code := bridge.Wait(); code != exit.OK {
		t.Errorf("exit code %d\n%s", code, bridge.Err)
	}
	for line := range strings.Lines(bridge.Err.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line that is not JSON: %s", line)
		}
	}
}

// The policy in the environment of a bridge becomes the default of all queues.
func TestServeWritesItsPolicyAsDefaults(t *testing.T) {
	t.Setenv("DUESTREAM_MAX_ATTEMPTS", "3")
	t.Setenv("DUESTREAM_RETRY_MIN", "2s")
	c := clitest.New(t)
	c.Serve()
	c.OK("schedule", "q", "x")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.OK("queue", "show", "q")
		return strings.Contains(out, "max_attempts        3\n") && strings.Contains(out, "retry_min           2s\n"), out
	})
}

// A bridge that is started before Redis waits, and serves when Redis is there.
func TestServeWaitsForRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := clitest.NewOn(t, s)
	s.Stop()
	c.Fails(exit.Unavailable, []string{"hint: is Redis running at " + c.URL}, "health")
	bridge := c.Start("serve")
	bridge.Says("goes on trying")
	s.Start()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		r := c.Run("health")
		return r.Code == exit.OK, r.Err
	})
	bridge.Stop()
	if code := bridge.Wait(); code != exit.OK {
		t.Errorf("exit code %d\n%s", code, bridge.Err)
	}
}

// A bridge that waits for Redis can be stopped, and then ends with exit code 0.
func TestServeStopsWhileItWaitsForRedis(t *testing.T) {
	t.Parallel()
	bridge := (&clitest.CLI{T: t, URL: clitest.Unreachable}).Start("serve")
	bridge.Says("goes on trying")
	bridge.Stop()
	if code := bridge.Wait(); code != exit.OK {
		t.Errorf("exit code %d\n%s", code, bridge.Err)
	}
}

// A server that may evict keys would lose messages, so serve refuses it, unless DUESTREAM_ANY_SERVER allows it.
func TestServeRefusesAServerThatEvicts(t *testing.T) {
	s := redistest.Own(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	c := clitest.NewOn(t, s)
	c.Fails(exit.Failure, []string{"maxmemory-policy is allkeys-lru", "hint: "}, "serve")
	t.Setenv("DUESTREAM_ANY_SERVER", "true")
	c.Serve()
}

// A service manager takes any other exit code than 0 for a failure, so a stop by a signal must end with 0.
func TestServeEndsWithZeroOnSIGTERMAndSIGINT(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := clitest.New(t)
		cmd, out := c.Program("serve", "--redis", c.URL, "--prefix", c.Prefix)
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			r := c.Run("health")
			return r.Code == exit.OK, r.Err + out.String()
		})
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", sig, err, out)
		}
	}
}
