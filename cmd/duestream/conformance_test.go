package main

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
	"github.com/duestream/duestream/integration/redistest"
)

// conform runs the command without --redis: the command must start its own server.
func conform(t *testing.T, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := run(ctx, testVersion, append([]string{"conformance"}, args...), strings.NewReader(""), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

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
		{[]string{"--producer", "--level", "minimal", "--", "true"}, "a producer is good or complete"},
		{[]string{"--worker", "--case", "nothing", "--", "true"}, "there is none of that name"},
		{[]string{"--worker", "--case", "[", "--", "true"}, "syntax error in pattern"},
		{[]string{"--worker", "--visibility", "1ms", "--", "true"}, "must be between 500ms and 1m0s"},
		{[]string{"--worker", "--patience", "1ms", "--", "true"}, "must be between 1s and 1h"},
		{[]string{"--worker", "--parallel", "0", "--", "true"}, "must be between 1 and 64"},
		{[]string{"--worker", "--prefix", "a b", "--", "true"}, "prefix"},
		{[]string{"--worker", "--redis", unreachable, "--server", "redis-server", "--", "true"}, "give one of them"},
		{[]string{"--worker", "--server", "/nonexistent/redis-server", "--", "true"}, "server: "},
		{[]string{"--worker", "--redis", unreachable, "--", "/nonexistent/worker"}, "command: "},
	} {
		if r := conform(t, tc.args...); r.code != exitInvalid || !strings.Contains(r.err, tc.want) {
			t.Errorf("%q: exit code %d, %s; want %d, %q", tc.args, r.code, r.err, exitInvalid, tc.want)
		}
	}
	if r := conform(t, "--worker", "--redis", unreachable, "--", "true"); r.code != exitUnavailable {
		t.Errorf("no server: exit code %d, %s", r.code, r.err)
	}
}

func TestConformanceSaysWhereAServerComesFrom(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "worker")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if r := conform(t, "--worker", "--", "worker"); r.code != exitInvalid || !strings.Contains(r.err, "--server") ||
		!strings.Contains(r.err, "--redis") {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
}

func TestConformanceListsCases(t *testing.T) {
	t.Parallel()
	r := conform(t, "--worker", "--list", "--json", "--level", "minimal")
	var cases []struct{ Name, Level, Section, Rule string }
	if decode(t, r.out, &cases); r.code != exitOK {
		t.Fatal(r.code, r.err)
	}
	if want := conformance.Cases(conformance.Worker, conformance.Minimal); len(cases) != len(want) {
		t.Errorf("%d cases; want %d", len(cases), len(want))
	}
	for _, c := range cases {
		if c.Name == "" || c.Level != "minimal" || c.Section == "" || c.Rule == "" {
			t.Errorf("%+v", c)
		}
	}
	if r := conform(t, "--producer", "--list"); r.code != exitOK || !strings.Contains(r.out, "transaction") ||
		!strings.Contains(r.out, "protocol.md, section 7") {
		t.Errorf("exit code %d\n%s", r.code, r.out)
	}
}

// One program confirms everything and does nothing, one keeps to the protocol, and one ends at once.
func TestConformanceTellsWhatItSaw(t *testing.T) {
	t.Parallel()
	parrot := []string{"--", "sh", "-c",
		`while read -r line; do id=${line#*'"id":"'}; printf '{"id":"%s","ok":true}\n' "${id%%'"'*}"; done`}
	answers := []string{"--server", redistest.Program(t), "--producer", "--case", "answers"}
	r := conform(t, append(answers, parrot...)...)
	if r.code != exitFailure || !strings.Contains(r.out, "no command that was sent schedules it") ||
		!strings.Contains(r.out, "0 passed, 1 failed, 0 not tried") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	good := []string{"--", "bash", filepath.Join("..", "..", "examples", "shell", "conformance.sh"), "producer"}
	r = conform(t, append(answers[:len(answers):len(answers)], good...)...)
	if r.code != exitOK || !strings.Contains(r.out, "passed") || !strings.Contains(r.out, "1 passed, 0 failed, 0 not tried") ||
		strings.Contains(r.out, "certificate") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}

	c := newCLI(t)
	dying := []string{"--", "sh", "-c", "echo the reason >&2; exit 3"}
	on := []string{"--redis", c.url, "--prefix", c.prefix, "--worker", "--level", "minimal"}
	r = conform(t, append(on, dying...)...)
	for _, want := range []string{
		"FAILED     payload", "rule:   A payload is bytes", "(protocol.md, section 5)", "seen:   worker one ended by itself: exit status 3", "stderr: the reason", "stderr: the same as before", "level     none",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if r.code != exitFailure || !strings.Contains(r.err, "does not reach the level minimal") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}

	r = conform(t, append(append(on, "--json", "--verbose"), dying...)...)
	var report struct {
		Kind, Asked, Level string
		Protocol           int
		Server             struct{ Product, Version string }
		Counts             struct{ Passed, Failed int }
		Cases              []struct{ Name, State, Seen, Stderr string }
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
		t.Fatalf("%v\n%s", err, r.out)
	}
	if report.Kind != "worker" || report.Asked != "minimal" || report.Level != "none" || report.Protocol != 1 ||
		report.Server.Version != c.s.Version() ||
		report.Counts.Failed != len(report.Cases) || report.Cases[0].State != "failed" || report.Cases[0].Stderr == "" {
		t.Errorf("%s", r.out)
	}
	if !strings.Contains(r.err, "the reason") {
		t.Errorf("--verbose does not show what the program writes: %s", r.err)
	}
}
