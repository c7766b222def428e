package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
		Healthy bool           `json:"healthy"`
		Bridges []bridgeHealth `json:"bridges"`
	}
	c.json(&health, "health")
	if !health.Healthy || len(health.Bridges) != 1 || !health.Bridges[0].Fresh || health.Bridges[0].ID == "" {
		t.Errorf("health %+v", health)
	}
	// An upgrade has to be seen: who runs where, and which version.
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	self, wrote := health.Bridges[0], lua.NewIdentity(host, os.Getpid(), version)
	if self.Host != wrote.Host || self.PID != wrote.PID || self.Version != wrote.Version || time.Since(time.UnixMilli(self.Started)).Abs() > 10*time.Minute {
		t.Errorf("health says %+v", self)
	}
	name := fmt.Sprintf("%s/%d %s", oneLine(wrote.Host, 24), wrote.PID, oneLine(wrote.Version, 24))
	for _, look := range []string{"stats", "top --once"} {
		if out := c.ok(strings.Fields(look)...); !strings.Contains(out, "bridges alive 1: "+name) {
			t.Errorf("%s does not name %q:\n%s", look, name, out)
		}
	}
	if out := c.ok("health"); !strings.Contains(out, wrote.Host) || !strings.Contains(out, self.ID) || !strings.Contains(out, wrote.Version) {
		t.Errorf("health says\n%s", out)
	}
	if !strings.Contains(bridge.err.String(), fmt.Sprintf(`"version":%q,"host":%q,"pid":%d,"bridge":%q`, version, wrote.Host, wrote.PID, self.ID)) {
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

func TestHealthFailsWithoutABridge(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	r := c.fails(exitFailure, []string{"no live bridge"}, "health", "--json")
	if !strings.Contains(r.out, `"healthy":false`) || !strings.Contains(r.out, `"bridges":[]`) {
		t.Errorf("output %s", r.out)
	}
	// One that died a minute ago, by the clock of Redis.
	client := c.redis()
	now, err := client.Do(t.Context(), client.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	add := client.B().Zadd().Key(c.prefix+":bridges").ScoreMember().ScoreMember(float64((now[0]-60)*1000), "old")
	if err := client.Do(t.Context(), add.Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFailure, []string{"no live bridge"}, "health")
}

// Anybody can add names to the heartbeats: such a name is no bridge, and it is printed harmlessly.
func TestForeignHeartbeatsAreNoBridges(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := c.redis()
	now, err := client.Do(t.Context(), client.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"\x1b]0;owned\a\x1b[2J", strings.Repeat("x", 1<<20), "\xff\u202e", "01M7ZMPW4AFDJS68SPX5258FR1 \x1b[2J 7 v1"} {
		if err := client.Do(t.Context(), client.B().Zadd().Key(c.prefix+":bridges").ScoreMember().ScoreMember(float64(now[0]*1000+60_000), name).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	r := c.fails(exitFailure, []string{"no live bridge"}, "health", "--json")
	if strings.Count(r.out, `"fresh":false`) != 4 || strings.Count(r.out, `"foreign":true`) != 4 || len(r.out) > 2000 {
		t.Errorf("%.3000s", r.out)
	}
	printed := r.out + c.fails(exitFailure, []string{"no live bridge"}, "health").out
	for _, look := range []string{"stats", "top --once", "top --once --json"} {
		out := c.ok(strings.Fields(look)...)
		if !strings.Contains(look, "json") && !strings.Contains(out, "no bridge is alive: nothing becomes ready; last heartbeats: 4 names that no bridge wrote") {
			t.Errorf("%s:\n%.3000s", look, out)
		}
		printed += out
	}
	if strings.ContainsAny(printed, "\x1b\a\u202e") || len(printed) > 10_000 {
		t.Errorf("printed %d bytes:\n%.3000q", len(printed), printed)
	}
	// A bridge beside them has all the queues.
	c.serve()
	c.ok("schedule", "q", "--in", "50ms", "--id", "one", "hello")
	redistest.Eventually(t, patience, func() (bool, string) {
		out := c.run("show", "q", "one", "--json").out
		return strings.Contains(out, `"ready"`), out
	})
}
