package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// This file tests the behaviour that all commands share.

// printing makes a queue q with one scheduled message "one", and returns command lines. Those in fine succeed and
// print. Those in fails fail for various reasons: an unknown item, a duplicate, a wrong or missing argument.
func printing(c *clitest.CLI) (fine, fails [][]string) {
	c.T.Helper()
	c.OK("schedule", "q", "--id", "one", "--in", "1h", "hello")
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0", "MKSTREAM")
	c.OK("token", "add", "t", "--verb", "publish", "--queue", "q")
	for _, line := range []string{
		"search --text hello", "act cancel --text hello --dry-run", "act expire q --all --dry-run",
		"token list", "migrate lmstfy --dry-run --from " + c.URL, "schedule q --in 1h x", "recur add q r --every 1h",
		"recur list", "recur show q r", "recur run q r", "recur pause q r", "recur resume q r", "show q one",
		"find one",
		"stats", "stats q", "forecast q", "peek q", "queue show", "queue show q",
		"queue partitions q", "queue partitions q 1",
		"queue set q max_attempts=5", "pause q", "resume q", "functions show", "version",
		"doctor --quick --severity error", "dead purge q --all --yes --dry-run",
		"dead redrive q --all --dry-run", "bulk cancel q --all --dry-run", "bulk expire q --id-prefix two",
		"bulk reschedule q one --in 1h", "top --once --interval 100ms", "reschedule q one --in 2h",
		"conformance --worker --list",
	} {
		fine = append(fine, strings.Fields(line))
	}
	for _, line := range []string{
		"search q two", "search --state gone", "act cancel q --all", "act purge q",
		"show q two", "result q one --group g", "wait q one --timeout 10ms", "find two", "dead show q 1-1",
		"cancel q two", "reschedule q two --in 1s", "stats unknown", "forecast unknown", "schedule q --id one x", "health",
		"stats --nonsense",
		"peek", "dead purge q --all", "bulk cancel q --all", "bulk expire q two", "stats -n 3",
		"schedule q --in nonsense x", "work q --json", "pending q nobody", "recur show q nobody",
		"recur add q r --every 1ms", "recur rm q nobody", "token rm nobody", "migrate lmstfy",
		"token add t --verb publish --queue q",
	} {
		fails = append(fails, strings.Fields(line))
	}
	return fine, fails
}

// Regression: JSON had three shapes (indented, a list, lines), and errors were never JSON. With --json, each line is
// now one object, on standard output and on standard error.
func TestJSONIsOneObjectPerLineAndErrorsAreToo(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	fine, fails := printing(c)
	// lines checks that each line of text is a JSON object, and counts the lines.
	lines := func(args []string, text string) (n int) {
		for line := range strings.Lines(text) {
			var object map[string]any
			if err := json.Unmarshal([]byte(line), &object); err != nil {
				t.Errorf("%q: %q is not an object: %v", args, line, err)
			}
			n++
		}
		return n
	}
	for _, args := range fine {
		args = append(args, "--json")
		r := c.Run(args...)
		if r.Code != exit.OK && r.Code != exit.Unwell || lines(args, r.Out) == 0 {
			t.Errorf("%q: exit code %d\n%s%s", args, r.Code, r.Out, r.Err)
		}
		lines(args, r.Err)
	}
	for _, args := range fails {
		args = append(args, "--json")
		r := c.Run(args...)
		if r.Code == exit.OK || lines(args, r.Err) != 1 {
			t.Errorf("%q: exit code %d\n%s%s", args, r.Code, r.Out, r.Err)
			continue
		}
		lines(args, r.Out)
		var said command.ErrorAnswer
		if clitest.Decode(t, r.Err, &said); said.Error == "" || said.Code != r.Code {
			t.Errorf("%q: exit code %d, %+v", args, r.Code, said)
		}
	}
	for _, empty := range []string{"dead list q", "consumers q", "pending q g"} { // an empty list has no lines
		if out := c.OK(append(strings.Fields(empty), "--json")...); out != "" {
			t.Errorf("%s: %s", empty, out)
		}
	}
}

// Regression: with a full disk or a closed pipe the output was lost, and the exit code was 0. Every command that prints
// must report the lost output, in every format that it has.
func TestOutputThatIsLostIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	fine, _ := printing(c)
	c.OK("resume", "q")
	commands := slices.Concat(fine, [][]string{{"cancel", "q", "one"}, {"export", "q"}, {"man"}, {"functions", "dump"},
		{"completion", "bash"}, {"help", "queue", "set"}, {"stats", "--watch"}, {"--version"}})
	for _, cmd := range tree() {
		commands = append(commands, append(strings.Fields(cmd.CommandPath())[1:], "--help"))
	}
	for _, args := range commands {
		for _, with := range [][]string{nil, {"--json"}} {
			all := slices.Concat(args, with)
			// These have no --json.
			if with != nil && (slices.Contains(args, "--help") || args[0] == "man" || args[0] == "export" ||
				args[0] == "completion" || args[0] == "help" ||
				args[0] == "--version" || slices.Equal(args, []string{"functions", "dump"})) {
				continue
			}
			var errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience) // for commands that print for ever
			code := command.Run(ctx, clitest.Version, c.Args(all), strings.NewReader(""), full{}, &errOut)
			cancel()
			if code == exit.OK || !strings.Contains(errOut.String(), "no space left") {
				t.Errorf("%q: exit code %d: %s", all, code, &errOut)
			}
		}
	}
}

// full is an output whose disk is full: each write fails.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: errors.New("no space left on device")}
}

// Regression: a queue with a misspelt name looked like an empty one. An unknown queue is now not found. A queue to
// which a plain producer has written is known, although it is not registered.
func TestAQueueThatNobodyKnowsIsNotFound(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, line := range []string{
		"stats q", "result q m --group g", "wait q m --group g", "stats q --watch", "stats q --partitions", "peek q",
		"queue show q", "queue show q --group g", "queue partitions q", "pending q g", "consumers q",
		"dead list q", "dead list q --summary", "dead show q 1-1", "dead redrive q --all",
		"dead purge q --all --yes", "dead edit q 1-1 --payload x", "export q", "bulk cancel q --all --yes",
		"bulk expire q m", "bulk reschedule q m --in 1s",
		"top q --once", "find one --queue q", "search q", "act cancel q --all --yes", "act redrive q --all", "doctor q",
	} {
		c.Fails(exit.NotFound, []string{"queue q: no such queue", "hint: "}, strings.Fields(line)...)
	}
	client := c.Redis()
	if err := client.Do(t.Context(), client.B().Zadd().Key(c.Key("q", "due")).ScoreMember().
		ScoreMember(4102444800000, "one").Build()).Error(); err != nil { // due in the year 2100
		t.Fatal(err)
	}
	c.OK("peek", "q") // written by a plain producer that does not register
}

// A misspelt command below help, or below a group of commands, must fail instead of printing some other help.
func TestHelpOfWhatDoesNotExistFails(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t}
	for _, line := range []string{"help nope", "help queue nope", "help stats nope", "queue nope", "dead nope",
		"functions nope",
		"completion nope", "nope"} {
		c.Fails(exit.Invalid, []string{"nope"}, strings.Fields(line)...)
	}
	for _, line := range []string{"help", "help queue", "help queue set", "help help", "queue", "dead", "completion"} {
		c.OK(strings.Fields(line)...)
	}
}
