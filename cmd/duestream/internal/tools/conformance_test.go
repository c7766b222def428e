package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/conformance"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// conform runs the command and adds no --redis. Unless args contain it, the command starts a server of its own.
func conform(t *testing.T, args ...string) clitest.Result {
	t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := command.Run(ctx, clitest.Version, append([]string{"conformance"}, args...), strings.NewReader(""), &out,
		&errOut)
	return clitest.Result{Code: code, Out: out.String(), Err: errOut.String()}
}

// Bad arguments give exit.Invalid before the command connects or starts a server.
func TestConformanceRefusesBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--", "true"}, "--worker or --producer"},
		{[]string{"--worker", "--producer", "--", "true"}, "--worker or --producer"},
		{[]string{"--worker"}, "no command behind --"},
		{[]string{"--worker", "true"}, "must stand behind --"},
		{[]string{"--worker", "x", "--", "true"}, `unexpected "x"`},
		{[]string{"--worker", "--list", "--", "true"}, "--list takes no command"},
		{[]string{"--worker", "--level", "best", "--", "true"}, "must be one of minimal, good, complete"},
		{[]string{"--producer", "--level", "minimal", "--", "true"}, "must be good or complete for a producer"},
		{[]string{"--worker", "--case", "nothing", "--", "true"}, "there is none of that name"},
		{[]string{"--worker", "--case", "[", "--", "true"}, "syntax error in pattern"},
		{[]string{"--worker", "--visibility", "1ms", "--", "true"}, "must be between 500ms and 1m0s"},
		{[]string{"--worker", "--patience", "1ms", "--", "true"}, "must be between 1s and 1h"},
		{[]string{"--worker", "--parallel", "0", "--", "true"}, "must be between 1 and 64"},
		{[]string{"--worker", "--prefix", "a b", "--", "true"}, "prefix"},
		{[]string{"--worker", "--redis", clitest.Unreachable, "--server", "redis-server", "--", "true"}, "give one of them"},
		{[]string{"--worker", "--server", "/nonexistent/redis-server", "--", "true"}, "server: "},
		{[]string{"--worker", "--redis", clitest.Unreachable, "--", "/nonexistent/worker"}, "command: "},
	} {
		if r := conform(t, tc.args...); r.Code != exit.Invalid || !strings.Contains(r.Err, tc.want) {
			t.Errorf("%q: exit code %d, %s; want %d, %q", tc.args, r.Code, r.Err, exit.Invalid, tc.want)
		}
	}
	if r := conform(t, "--worker", "--redis", clitest.Unreachable, "--", "true"); r.Code != exit.Unavailable {
		t.Errorf("no server: exit code %d, %s", r.Code, r.Err)
	}
}

// Without --redis, --server and a redis-server on the PATH, the error names both flags.
func TestConformanceWithoutAServerNamesTheFlagsThatGiveOne(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "worker")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if r := conform(t, "--worker", "--", "worker"); r.Code != exit.Invalid || !strings.Contains(r.Err, "--server") ||
		!strings.Contains(r.Err, "--redis") {
		t.Errorf("exit code %d, %s", r.Code, r.Err)
	}
}

// --list shows the cases of a kind and level, with their rule and section, and runs none.
func TestConformanceListsCases(t *testing.T) {
	t.Parallel()
	r := conform(t, "--worker", "--list", "--json", "--level", "minimal")
	var cases []struct{ Name, Level, Section, Rule string }
	if r.Code != exit.OK {
		t.Fatal(r.Code, r.Err)
	}
	clitest.Decode(t, r.Out, &cases)
	if want := conformance.Cases(conformance.Worker, conformance.Minimal); len(cases) != len(want) {
		t.Errorf("%d cases; want %d", len(cases), len(want))
	}
	for _, c := range cases {
		if c.Name == "" || c.Level != "minimal" || c.Section == "" || c.Rule == "" {
			t.Errorf("%+v", c)
		}
	}
	if r := conform(t, "--producer", "--list"); r.Code != exit.OK || !strings.Contains(r.Out, "transaction") ||
		!strings.Contains(r.Out, "protocol.md, section 7") {
		t.Errorf("exit code %d\n%s", r.Code, r.Out)
	}
}

// The command reports on three programs: one confirms every message but schedules none, one keeps to the protocol, and
// one exits at once.
func TestConformanceTellsWhatItSaw(t *testing.T) {
	t.Parallel()
	// parrot answers each line with ok, and does nothing else.
	parrot := []string{"--", "sh", "-c",
		`while read -r line; do id=${line#*'"id":"'}; printf '{"id":"%s","ok":true}\n' "${id%%'"'*}"; done`}
	replace := []string{"--server", redistest.Program(t), "--producer", "--case", "replace"}
	r := conform(t, append(replace, parrot...)...)
	if r.Code != exit.Failure || !strings.Contains(r.Out, "was answered with ok, is due later, and is not scheduled") ||
		!strings.Contains(r.Out, "0 passed, 1 failed, 0 not tried") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Out, r.Err)
	}
	program := filepath.Join("..", "..", "..", "..", "examples", "shell", "conformance.sh")
	good := []string{"--", "bash", program, "producer"}
	r = conform(t, append(replace[:len(replace):len(replace)], good...)...)
	if r.Code != exit.OK || !strings.Contains(r.Out, "passed") ||
		!strings.Contains(r.Out, "1 passed, 0 failed, 0 not tried") ||
		strings.Contains(r.Out, "certificate") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Out, r.Err)
	}

	c := clitest.New(t)
	dying := []string{"--", "sh", "-c", "echo the reason >&2; exit 3"}
	on := []string{"--redis", c.URL, "--prefix", c.Prefix, "--worker", "--level", "minimal"}
	r = conform(t, append(on, dying...)...)
	for _, want := range []string{
		"FAILED     payload", "rule:   A payload is bytes", "(protocol.md, section 5)",
		"seen:   worker one ended by itself: exit status 3", "stderr: the reason",
		"stderr: the same as before", "level     none",
	} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if r.Code != exit.Failure || !strings.Contains(r.Err, "does not reach the level minimal") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Out, r.Err)
	}

	r = conform(t, append(append(on, "--json", "--verbose"), dying...)...)
	var report struct {
		Kind, Asked, Level string
		Protocol           int
		Server             struct{ Product, Version string }
		Counts             struct{ Passed, Failed int }
		Cases              []struct{ Name, State, Seen, Stderr string }
	}
	if err := json.Unmarshal([]byte(r.Out), &report); err != nil {
		t.Fatalf("%v\n%s", err, r.Out)
	}
	if report.Kind != "worker" || report.Asked != "minimal" || report.Level != "none" || report.Protocol != 1 ||
		report.Server.Version != c.Server.Version() ||
		report.Counts.Failed != len(report.Cases) || report.Cases[0].State != "failed" || report.Cases[0].Stderr == "" {
		t.Errorf("%s", r.Out)
	}
	if !strings.Contains(r.Err, "the reason") {
		t.Errorf("--verbose does not show what the program writes: %s", r.Err)
	}
}
