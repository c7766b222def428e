package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestRedisAwayIsSaidWithAHint(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: "redis://user:secret@127.0.0.1:1"}
	for _, args := range [][]string{{"schedule", "q", "x"}, {"show", "q", "x"}, {"stats"}, {"cancel", "q", "x"},
		{"dead", "list", "q"}, {"health"}} {
		r := c.fails(exitUnavailable, []string{"hint: is Redis running at redis://127.0.0.1:1?", "duestream dev"}, args...)
		if strings.Contains(r.err, "secret") {
			t.Errorf("%q prints the password: %s", args, r.err)
		}
	}
	c.url = "http://127.0.0.1"
	c.fails(exitInvalid, []string{`redis URL http://127.0.0.1: must be like redis://`}, "stats")
}

func TestFullRedisHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := newCLIOn(t, s)
	client := c.redis()
	set := client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", "1").Build()
	if err := client.Do(t.Context(), set).Error(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFull, []string{"redis is full", "hint: raise maxmemory"}, "schedule", "q", "x", "--in", "1h")
	r := c.runIn("{\"id\":\"a\"}\n", "schedule", "q", "--file", "-")
	if r.code != exitFull || !strings.Contains(r.err, "--from-line 1") {
		t.Errorf("%+v", r)
	}
}

// A server that refuses a write is running, so the hint does not ask whether Redis runs.
func TestAServerThatRefusesForNowIsSaidWithItsOwnHint(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t, "--min-replicas-to-write", "1"))
	r := c.fails(exitUnavailable, []string{"NOREPLICAS", "hint: the server refuses writes until min-replicas-to-write"},
		"schedule", "q", "x")
	if strings.Contains(r.err, "is Redis running") {
		t.Error(r.err)
	}
}

func TestForeignKeyIsSaidWithAHint(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	client := c.redis()
	if err := client.Do(t.Context(), client.B().Set().Key(c.key("q", "due")).Value("x").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFailure, []string{"wrong type", "hint: another program"}, "schedule", "q", "x")
	c.fails(exitFailure, []string{"wrong type"}, "stats", "q")
}

func TestInterruptHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := newCLIOn(t, s)
	s.Pause()
	r := c.start("stats")
	r.stop()
	if code := r.wait(); code != exitInterrupted || !strings.Contains(r.err.String(), "duestream: interrupted") {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	s.Resume()
}

func TestExitCodesAreDocumented(t *testing.T) {
	out := (&cli{t: t}).ok("--help")
	for _, code := range []int{exitOK, exitFailure, exitInvalid, exitNotFound, exitDuplicate, exitUnavailable, exitPartly,
		exitFull, exitInterrupted} {
		if !strings.Contains(out, fmt.Sprintf("\n  %-3d  ", code)) {
			t.Errorf("exit code %d is not in\n%s", code, out)
		}
	}
	if out := (&cli{t: t}).ok("stats", "--help"); strings.Contains(out, "Exit codes") {
		t.Errorf("the table of exit codes is in the help of a command:\n%s", out)
	}
}

// The server has no replica: the command works, and the exit code says that the result is not as durable as asked.
func TestDurabilityThatIsNotConfirmedHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range [][]string{
		{"schedule", "q", "x", "--in", "1h", "--id", "a"}, {"reschedule", "q", "a", "--in", "2h"}, {"cancel", "q", "a"},
	} {
		r := c.run(append(args, "--durability", "replicated=1")...)
		if r.code != exitNotDurable || !strings.HasPrefix(r.out, "a  ") || !strings.Contains(r.err, "on 0 of 1 replicas") ||
			!strings.Contains(r.err, "hint: ") {
			t.Errorf("%s: %v", args[0], r)
		}
	}
	lines := `{"id":"f1","in_ms":3600000}` + "\n" + `{"id":"f2","in_ms":3600000}` + "\n"
	for _, counts := range []string{"scheduled 2, duplicates 0, refused 0 of 2", "scheduled 0, duplicates 2, refused 0 of 2"} {
		r := c.runIn(lines, "schedule", "q", "--file", "-", "--durability", "replicated=1")
		if r.code != exitNotDurable || !strings.Contains(r.out, counts) || !strings.Contains(r.err, "--from-line 1") ||
			!strings.Contains(r.err, "on 0 of 1 replicas") {
			t.Errorf("a file, %s: %v", counts, r)
		}
	}
	for _, level := range []string{"", "sure", "replicated", "replicated=0", "replicated=x", "replicated=101"} {
		if r := c.run("schedule", "q", "x", "--durability", level); r.code != exitInvalid {
			t.Errorf("%q: %v", level, r)
		}
	}
	r := c.run("schedule", "q", "x", "--durability", "fsynced")
	if r.code != exitFailure || !strings.Contains(r.err, "unsupported") {
		t.Errorf("fsynced without an append-only file: %v", r)
	}
}

// The bug: package names were cut out of error texts, so an ID that contained one was changed.
func TestAnErrorShowsAUsersWordsAsTheyAre(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const id = "a: lua: stream: b"
	c.ok("schedule", "q", "x", "--in", "1h", "--id", id)
	c.fails(exitDuplicate, []string{"duestream: schedule q/" + id + ": duplicate message ID"}, "schedule", "q", "x", "--id", id)
}

// No code removes package names from errors, so no error may begin with one.
func TestErrorsNameNoPackage(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(
		`(errors\.New|fmt\.Errorf)\("(bench|bridge|child|conformance|doctor|lua|scheduler|stream|tryout|view|admin): `)
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "integration" || d.Name() == "examples"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		text, err := os.ReadFile(path)
		for _, found := range named.FindAllString(string(text), -1) {
			t.Errorf("%s: %s", path, found)
		}
		return err
	})
	if err != nil || files < 100 {
		t.Errorf("%d files, %v", files, err)
	}
}
