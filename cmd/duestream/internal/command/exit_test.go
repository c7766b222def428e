package command_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// If Redis does not run, the error shows the address that was tried, what to do next, and never the password of the
// URL.
func TestRedisAwayIsSaidWithAHint(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: "redis://user:secret@127.0.0.1:1"}
	for _, args := range [][]string{{"schedule", "q", "x"}, {"show", "q", "x"}, {"stats"}, {"cancel", "q", "x"},
		{"dead", "list", "q"}, {"health"}} {
		r := c.Fails(exit.Unavailable, []string{"hint: is Redis running at redis://127.0.0.1:1?", "duestream dev"}, args...)
		if strings.Contains(r.Err, "secret") {
			t.Errorf("%q prints the password: %s", args, r.Err)
		}
	}
	c.URL = "http://127.0.0.1"
	c.Fails(exit.Invalid, []string{`redis URL http://127.0.0.1: must be like redis://`}, "stats")
}

// A server that has reached maxmemory has an exit code and a hint of its own. With --file, the error says at which line
// to continue.
func TestFullRedisHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := clitest.NewOn(t, s)
	client := c.Redis()
	set := client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", "1").Build()
	if err := client.Do(t.Context(), set).Error(); err != nil {
		t.Fatal(err)
	}
	c.Fails(exit.Full, []string{"redis is full", "hint: raise maxmemory"}, "schedule", "q", "x", "--in", "1h")
	r := c.RunIn("{\"id\":\"a\"}\n", "schedule", "q", "--file", "-")
	if r.Code != exit.Full || !strings.Contains(r.Err, "--from-line 1") {
		t.Errorf("%+v", r)
	}
}

// A server that refuses a write is running, so the hint does not ask whether Redis runs.
func TestAServerThatRefusesForNowIsSaidWithItsOwnHint(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--min-replicas-to-write", "1"))
	r := c.Fails(exit.Unavailable, []string{"NOREPLICAS", "hint: the server refuses writes until min-replicas-to-write"},
		"schedule", "q", "x")
	if strings.Contains(r.Err, "is Redis running") {
		t.Error(r.Err)
	}
}

// A key of a queue that another program has overwritten with another type is named as such.
func TestForeignKeyIsSaidWithAHint(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	client := c.Redis()
	if err := client.Do(t.Context(), client.B().Set().Key(c.Key("q", "due")).Value("x").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.Fails(exit.Failure, []string{"wrong type", "hint: another program"}, "schedule", "q", "x")
	c.Fails(exit.Failure, []string{"wrong type"}, "stats", "q")
}

// A command that waits for a hanging server can be interrupted, and says that it was.
func TestInterruptHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c := clitest.NewOn(t, s)
	s.Pause()
	r := c.Start("stats")
	r.Stop()
	if code := r.Wait(); code != exit.Interrupted || !strings.Contains(r.Err.String(), "duestream: interrupted") {
		t.Errorf("exit code %d: %s", code, r.Err)
	}
	s.Resume()
}

// The help of the program lists the exit codes. The help of a single command does not.
func TestExitCodesAreDocumented(t *testing.T) {
	out := (&clitest.CLI{T: t}).OK("--help")
	for _, code := range []int{exit.OK, exit.Failure, exit.Invalid, exit.NotFound, exit.Duplicate, exit.Unavailable,
		exit.Partly,
		exit.Full, exit.Interrupted} {
		if !strings.Contains(out, fmt.Sprintf("\n  %-3d  ", code)) {
			t.Errorf("exit code %d is not in\n%s", code, out)
		}
	}
	if out := (&clitest.CLI{T: t}).OK("stats", "--help"); strings.Contains(out, "Exit codes") {
		t.Errorf("the table of exit codes is in the help of a command:\n%s", out)
	}
}

// Durability on a replica is asked of a server without replicas: the command works, and the exit code says that the
// result is not as durable as asked.
func TestDurabilityThatIsNotConfirmedHasItsOwnExitCode(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, args := range [][]string{
		{"schedule", "q", "x", "--in", "1h", "--id", "a"}, {"reschedule", "q", "a", "--in", "2h"}, {"cancel", "q", "a"},
	} {
		r := c.Run(append(args, "--durability", "replicated=1")...)
		if r.Code != exit.NotDurable || !strings.HasPrefix(r.Out, "a  ") || !strings.Contains(r.Err, "on 0 of 1 replicas") ||
			!strings.Contains(r.Err, "hint: ") {
			t.Errorf("%s: %v", args[0], r)
		}
	}
	lines := `{"id":"f1","in_ms":3600000}` + "\n" + `{"id":"f2","in_ms":3600000}` + "\n"
	for _, counts := range []string{"scheduled 2, duplicates 0, refused 0 of 2", "scheduled 0, duplicates 2, refused 0 of 2"} {
		r := c.RunIn(lines, "schedule", "q", "--file", "-", "--durability", "replicated=1")
		if r.Code != exit.NotDurable || !strings.Contains(r.Out, counts) || !strings.Contains(r.Err, "--from-line 1") ||
			!strings.Contains(r.Err, "on 0 of 1 replicas") {
			t.Errorf("a file, %s: %v", counts, r)
		}
	}
	for _, level := range []string{"", "sure", "replicated", "replicated=0", "replicated=x", "replicated=101"} {
		if r := c.Run("schedule", "q", "x", "--durability", level); r.Code != exit.Invalid {
			t.Errorf("%q: %v", level, r)
		}
	}
	r := c.Run("schedule", "q", "x", "--durability", "fsynced")
	if r.Code != exit.Failure || !strings.Contains(r.Err, "unsupported") {
		t.Errorf("fsynced without an append-only file: %v", r)
	}
}

// Regression: package names were cut out of error texts, so an ID that contained one was changed.
func TestAnErrorShowsAUsersWordsAsTheyAre(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	const id = "a: lua: stream: b"
	c.OK("schedule", "q", "x", "--in", "1h", "--id", id)
	c.Fails(exit.Duplicate, []string{"duestream: schedule q/" + id + ": duplicate message ID"}, "schedule", "q", "x",
		"--id", id)
}

// No code removes package names from errors before users see them, so no error may begin with one.
func TestErrorsNameNoPackage(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(
		`(errors\.New|fmt\.Errorf)\("(bench|bridge|child|conformance|doctor|lua|scheduler|stream|tryout|view|admin): `)
	files := 0
	err := filepath.WalkDir("../../../..", func(path string, d fs.DirEntry, err error) error {
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
	if err != nil || files < 100 { // fewer: the walk began in the wrong directory
		t.Errorf("%d files, %v", files, err)
	}
}
