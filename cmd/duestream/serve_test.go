package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestServeDeliversAndStopsCleanly(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	bridge := c.serve()
	c.ok("schedule", "q", "--in", "50ms", "--id", "one", "hello")
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.run("show", "q", "one", "--json").out
		return strings.Contains(out, `"ready"`), out
	})
	var health struct {
		Healthy bool               `json:"healthy"`
		Bridges []heartbeat.Health `json:"bridges"`
	}
	c.json(&health, "health")
	if !health.Healthy || len(health.Bridges) != 1 || !health.Bridges[0].Fresh || health.Bridges[0].ID == "" {
		t.Errorf("health %+v", health)
	}
	// An upgrade must be visible: the hosts, processes and versions of bridges.
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	self, wrote := health.Bridges[0], lua.NewIdentity(host, os.Getpid(), testVersion)
	if self.Host != wrote.Host || self.PID != wrote.PID || self.Version != wrote.Version ||
		time.Since(time.UnixMilli(self.Started)).Abs() > 10*time.Minute {
		t.Errorf("health says %+v", self)
	}
	name := fmt.Sprintf("%s/%d %s", human.OneLine(wrote.Host, 24), wrote.PID, human.OneLine(wrote.Version, 24))
	for _, look := range []string{"stats", "top --once"} {
		if out := c.ok(strings.Fields(look)...); !strings.Contains(out, "bridges alive 1: "+name) {
			t.Errorf("%s does not name %q:\n%s", look, name, out)
		}
	}
	if out := c.ok("health"); !strings.Contains(out, wrote.Host) || !strings.Contains(out, self.ID) ||
		!strings.Contains(out, wrote.Version) {
		t.Errorf("health says\n%s", out)
	}
	if !strings.Contains(bridge.err.String(), fmt.Sprintf(`"version":%q,"host":%q,"pid":%d,"bridge":%q`, testVersion,
		wrote.Host, wrote.PID, self.ID)) {
		t.Errorf("the log does not say who starts:\n%s", bridge.err)
	}
	bridge.stop()
	if code := bridge.wait(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, bridge.err)
	}
	for line := range strings.Lines(bridge.err.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line that is not JSON: %s", line)
		}
	}
}

func TestServeWritesItsPolicyAsDefaults(t *testing.T) {
	t.Setenv("DUESTREAM_MAX_ATTEMPTS", "3")
	t.Setenv("DUESTREAM_RETRY_MIN", "2s")
	c := newCLI(t)
	c.serve()
	c.ok("schedule", "q", "x")
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.ok("queue", "show", "q")
		return strings.Contains(out, "max_attempts        3\n") && strings.Contains(out, "retry_min           2s\n"), out
	})
}

func TestServeWaitsForRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := newCLIOn(t, s)
	s.Stop()
	c.fails(exitUnavailable, []string{"hint: is Redis running at " + c.url}, "health")
	bridge := c.start("serve")
	bridge.says("goes on trying")
	s.Start()
	redistest.Eventually(t, patience, func() (bool, string) {
		r := c.run("health")
		return r.code == exitOK, r.err
	})
	bridge.stop()
	if code := bridge.wait(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, bridge.err)
	}
}

func TestServeStopsWhileItWaitsForRedis(t *testing.T) {
	t.Parallel()
	bridge := (&cli{t: t, url: unreachable}).start("serve")
	bridge.says("goes on trying")
	bridge.stop()
	if code := bridge.wait(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, bridge.err)
	}
}

func TestServeRefusesAServerThatEvicts(t *testing.T) {
	s := redistest.Own(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	c := newCLIOn(t, s)
	c.fails(exitFailure, []string{"maxmemory-policy is allkeys-lru", "hint: "}, "serve")
	t.Setenv("DUESTREAM_ANY_SERVER", "true")
	c.serve()
}

func TestServeEndsWithZeroOnSIGTERMAndSIGINT(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := newCLI(t)
		cmd, out := c.program("serve", "--redis", c.url, "--prefix", c.prefix)
		redistest.Eventually(t, patience, func() (bool, string) {
			r := c.run("health")
			return r.code == exitOK, r.err + out.String()
		})
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", sig, err, out)
		}
	}
}
