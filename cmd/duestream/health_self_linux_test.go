package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// served is a bridge in a process of its own, with its health file.
type served struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *buffer
	file string
}

func startServed(c *cli, url string) *served {
	c.t.Helper()
	s := &served{t: c.t, file: filepath.Join(c.t.TempDir(), "health")}
	s.cmd, s.out = c.programWith([]string{"DUESTREAM_HEALTH_FILE=" + s.file}, "serve", "--redis", url, "--prefix", c.prefix)
	return s
}

// self runs `health --self`, as the health check of the image does.
func (s *served) self() (v vitals, healthy bool, said string) {
	s.t.Helper()
	cmd := exec.Command(s.cmd.Path, "health", "--self", "--json")
	cmd.Env = append(os.Environ(), "DUESTREAM_HEALTH_FILE="+s.file)
	var errs buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	_ = json.Unmarshal(out, &v)
	return v, err == nil, string(out) + errs.String() + s.out.String()
}

func (s *served) becomes(healthy bool, is func(v vitals) bool) {
	s.t.Helper()
	redistest.Eventually(s.t, patience, func() (bool, string) {
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

func whatever(vitals) bool { return true }

// Two bugs. First: 1. Redis is down. 2. The health check of the image asks Redis, and fails. 3. The bridge is
// restarted, although it waits for Redis as it should. Second: 1. A bridge hangs. 2. The health check sees the
// heartbeat of another bridge. 3. The bridge hangs for ever.
func TestHealthOfSelfAsksItsOwnProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := newCLIOn(t, server)
	s := startServed(c, c.url)
	s.becomes(true, func(v vitals) bool {
		return v.State == "runs" && v.Redis && v.PID == s.cmd.Process.Pid && v.Version == testVersion
	})
	c.serve() // another live bridge

	s.signal(syscall.SIGSTOP)
	s.becomes(false, whatever)
	c.ok("health")
	s.signal(syscall.SIGCONT)
	s.becomes(true, func(v vitals) bool { return v.Redis })

	server.Stop()
	redistest.Eventually(t, patience, func() (bool, string) {
		v, healthy, said := s.self()
		if !healthy {
			t.Fatalf("not healthy while Redis is away: %s", said)
		}
		return !v.Redis, said
	})
	c.fails(exitUnavailable, nil, "health")

	s.signal(syscall.SIGKILL)
	s.becomes(false, whatever)
}

func TestHealthOfSelfWhileRedisWasNeverThere(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable, prefix: "p"}
	s := startServed(c, c.url)
	s.becomes(true, func(v vitals) bool { return v.State == "starts" && !v.Redis })
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
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "missing", "health")
	_, out := c.programWith([]string{"DUESTREAM_HEALTH_FILE=" + file}, "serve", "--redis", c.url, "--prefix", c.prefix)
	redistest.Eventually(t, patience, func() (bool, string) {
		return c.run("health").code == exitOK && strings.Count(out.String(), "cannot write the health file") == 1, out.String()
	})
}

func TestVitals(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_900_000_000_000)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	for name, c := range map[string]struct {
		v    vitals
		says string
	}{
		"fresh":                 {vitals{Written: ago(time.Second), Turned: ago(2 * time.Second)}, ""},
		"before the first turn": {vitals{State: "starts", Written: ago(time.Second)}, ""},
		"redis hangs":           {vitals{Written: ago(0), Turned: ago(12 * time.Second)}, ""},
		"stale": {vitals{Written: ago(6 * time.Second), Turned: ago(6 * time.Second)},
			"has said nothing for 6s"},
		"of the future": {vitals{Written: ago(-time.Hour), Turned: ago(-time.Hour)}, "has said nothing"},
		"nothing in it": {vitals{}, "has said nothing"},
		"the heartbeat is stuck": {vitals{State: "runs", Written: ago(0), Turned: ago(40 * time.Second)},
			"has not come round for 40s"},
		"a clean stop takes longer": {vitals{State: "stops", Written: ago(0), Turned: ago(40 * time.Second)}, ""},
	} {
		err := c.v.trouble(now)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	file, precious := filepath.Join(dir, "health"), filepath.Join(dir, "precious")
	if err := errors.Join(os.WriteFile(precious, []byte("x"), 0o600), os.Symlink(precious, file+".new")); err != nil {
		t.Fatal(err)
	}
	if err := (vitals{PID: 7}).write(file); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(precious); string(text) != "x" {
		t.Errorf("a link was followed: %q", text)
	}
	if v, err := readVitals(file); err != nil || v.PID != 7 {
		t.Errorf("%+v %v", v, err)
	}
	for _, bad := range []string{dir, precious, filepath.Join(dir, "none")} {
		if _, err := readVitals(bad); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
