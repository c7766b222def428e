package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// This file tests the behaviour that all commands share.

// printing returns command lines that print: fine succeed for queue q with one scheduled message "one", and fails
// fail because the queue is unknown.
func printing(c *cli) (fine, fails [][]string) {
	c.t.Helper()
	c.ok("schedule", "q", "--id", "one", "--in", "1h", "hello")
	c.redis().Do(c.t.Context(), c.redis().B().XgroupCreate().Key(c.key("q", "stream")).Group("g").Id("0").Mkstream().Build())
	c.ok("token", "add", "t", "--verb", "publish", "--queue", "q")
	for _, line := range []string{
		"token list", "migrate lmstfy --dry-run --from " + c.url, "schedule q --in 1h x", "recur add q r --every 1h", "recur list", "recur show q r", "recur run q r", "recur pause q r", "recur resume q r", "show q one", "find one", "stats", "stats q", "peek q", "queue show", "queue show q", "queue partitions q", "queue partitions q 1",
		"queue set q max_attempts=5", "pause q", "resume q", "functions show", "version", "doctor --quick --severity error", "dead purge q --all --yes --dry-run",
		"dead redrive q --all --dry-run", "bulk cancel q --all --dry-run", "bulk expire q --id-prefix two", "bulk reschedule q one --in 1h", "top --once --interval 100ms", "reschedule q one --in 2h", "conformance --worker --list",
	} {
		fine = append(fine, strings.Fields(line))
	}
	for _, line := range []string{
		"show q two", "find two", "dead show q 1-1", "cancel q two", "reschedule q two --in 1s", "stats unknown", "schedule q --id one x", "health", "stats --nonsense",
		"peek", "dead purge q --all", "bulk cancel q --all", "bulk expire q two", "stats -n 3", "schedule q --in nonsense x", "work q --json", "pending q nobody", "recur show q nobody", "recur add q r --every 1ms", "recur rm q nobody", "token rm nobody", "migrate lmstfy", "token add t --verb publish --queue q",
	} {
		fails = append(fails, strings.Fields(line))
	}
	return fine, fails
}

// The bug: JSON had three shapes (indented, a list, lines), and errors were never JSON.
func TestJSONIsOneObjectPerLineAndErrorsAreToo(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	fine, fails := printing(c)
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
		r := c.run(args...)
		if r.code != exitOK && r.code != exitUnwell || lines(args, r.out) == 0 {
			t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.out, r.err)
		}
		lines(args, r.err)
	}
	for _, args := range fails {
		args = append(args, "--json")
		r := c.run(args...)
		if r.code == exitOK || lines(args, r.err) != 1 {
			t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.out, r.err)
			continue
		}
		lines(args, r.out)
		var said reported
		if decode(t, r.err, &said); said.Error == "" || said.Code != r.code {
			t.Errorf("%q: exit code %d, %+v", args, r.code, said)
		}
	}
	for _, empty := range []string{"dead list q", "consumers q", "pending q g"} { // an empty list has no lines
		if out := c.ok(append(strings.Fields(empty), "--json")...); out != "" {
			t.Errorf("%s: %s", empty, out)
		}
	}
}

// The bug: with a full disk or a closed pipe the output was lost, and the exit code was 0.
func TestOutputThatIsLostIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	fine, _ := printing(c)
	c.ok("resume", "q")
	commands := slices.Concat(fine, [][]string{{"cancel", "q", "one"}, {"export", "q"}, {"man"}, {"functions", "dump"},
		{"completion", "bash"}, {"help", "queue", "set"}, {"stats", "--watch"}, {"--version"}})
	for _, cmd := range tree() {
		commands = append(commands, append(strings.Fields(cmd.CommandPath())[1:], "--help"))
	}
	for _, args := range commands {
		for _, with := range [][]string{nil, {"--json"}} {
			all := slices.Concat(args, with)
			if with != nil && (slices.Contains(args, "--help") || args[0] == "man" || args[0] == "export" ||
				args[0] == "completion" || args[0] == "help" ||
				args[0] == "--version" || slices.Equal(args, []string{"functions", "dump"})) {
				continue
			}
			var errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), patience) // for commands that print for ever
			code := run(ctx, testVersion, c.args(all), strings.NewReader(""), full{}, &errOut)
			cancel()
			if code == exitOK || !strings.Contains(errOut.String(), "no space left") {
				t.Errorf("%q: exit code %d: %s", all, code, &errOut)
			}
		}
	}
}

// full is a writer on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: errors.New("no space left on device")}
}

// The bug: a queue with a misspelt name looked like an empty one.
func TestAQueueThatNobodyKnowsIsNotFound(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"stats q", "stats q --watch", "stats q --partitions", "peek q", "queue show q", "queue show q --group g", "queue partitions q", "pending q g", "consumers q",
		"dead list q", "dead list q --summary", "dead show q 1-1", "dead redrive q --all", "dead purge q --all --yes", "dead edit q 1-1 --payload x", "export q", "bulk cancel q --all --yes", "bulk expire q m", "bulk reschedule q m --in 1s",
		"top q --once", "find one --queue q", "doctor q",
	} {
		c.fails(exitNotFound, []string{"queue q: no such queue", "hint: "}, strings.Fields(line)...)
	}
	client := c.redis()
	if err := client.Do(t.Context(), client.B().Zadd().Key(c.key("q", "due")).ScoreMember().
		ScoreMember(4102444800000, "one").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.ok("peek", "q") // written by a plain producer that does not register
}

func TestHelpOfWhatDoesNotExistFails(t *testing.T) {
	t.Parallel()
	c := &cli{t: t}
	for _, line := range []string{"help nope", "help queue nope", "help stats nope", "queue nope", "dead nope", "functions nope",
		"completion nope", "nope"} {
		c.fails(exitInvalid, []string{"nope"}, strings.Fields(line)...)
	}
	for _, line := range []string{"help", "help queue", "help queue set", "help help", "queue", "dead", "completion"} {
		c.ok(strings.Fields(line)...)
	}
}
