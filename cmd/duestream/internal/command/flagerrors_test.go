package command_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// Errors of the command line are in our own words, and do not show the Go error of a flag library. Each key is a part
// of the error that its arguments give.
func TestNoErrorOfTheCommandLineQuotesALibrary(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for says, args := range map[string][]string{
		"--file and --id exclude each other":                      {"schedule", "q", "--id", "a", "--file", "f"},
		"--expires-at and --expires-in exclude each other":        {"schedule", "q", "--expires-in", "1h", "--expires-at", "2030-01-01T00:00:00Z", "x"},
		`--limit "ten": must be a whole number`:                   {"dead", "list", "q", "--limit", "ten"},
		`--max-attempts "1e3": must be a whole number`:            {"schedule", "q", "--max-attempts", "1e3", "x"},
		`--create "maybe": must be true or false`:                 {"pause", "q", "--create=maybe"},
		`--limit "99999999999999999999": must be a whole`:         {"dead", "list", "q", "--limit", "99999999999999999999"},
		`unknown command "nosuch" for "duestream"`:                {"nosuch", "--json"},
		`unknown command "nosuch" for "duestream queue"`:          {"queue", "nosuch", "--json", "-x"},
		`unknown flag: --nosuch`:                                  {"--nosuch", "stats"},
		`--in "abc": must be a duration`:                          {"schedule", "q", "--in", "abc", "x"},
		`duestream: --in: in "99999h0m0s": must be between 0 and`: {"schedule", "q", "--in", "99999h", "x"},
		`cancel takes <queue> <id>..., and was given 1 arg`:       {"cancel", "q"},
		`functions load takes no arguments, and was given`:        {"functions", "load", "x"},
	} {
		if slices.Contains(args, "--json") { // the error is then a JSON string
			says = strings.ReplaceAll(says, `"`, `\"`)
		}
		c.Fails(exit.Invalid, []string{says}, args...)
	}
}

// Regression: a command that had done nothing said "partly done". Now it says "nothing done". Its exit code is
// exit.Partly as before.
func TestNothingDoneIsNotCalledPartlyDone(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for says, lines := range map[string]string{
		"nothing done: refused: 2 lines": "{\n}\n", "partly done: refused: 1 line": `{"payload":"x"}` + "\n{\n",
	} {
		if r := c.RunIn(lines, "schedule", "q", "--file", "-"); r.Code != exit.Partly || !strings.Contains(r.Err, says) {
			t.Errorf("exit code %d, want %q: %s", r.Code, says, r.Err)
		}
	}
	letter := c.OneLetter("x")
	c.Do("XGROUP", "DESTROY", c.Key("q", "stream"), "g")
	c.Fails(exit.Partly, []string{"nothing done: there is no group g"}, "dead", "edit", "q", letter, "--payload", "y")
	c.Fails(exit.Partly, []string{"nothing done: not redriven: 1 letter"}, "dead", "redrive", "q", letter)
}

// An error names the queue and the missing group in plain words, and does not show the server's NOGROUP.
func TestAGroupThatIsNotThereIsNamedInPlainWords(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--in", "1h", "x")
	r := c.Fails(exit.NotFound, []string{"duestream: group nosuch of queue q: no such consumer group\n"}, "pending",
		"q", "nosuch")
	if strings.Contains(r.Err, "NOGROUP") {
		t.Error(r.Err)
	}
}

// The error of a bad setting names the setting and its value once.
func TestABadSettingIsNamedOnce(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--in", "1h", "x")
	r := c.Fails(exit.Invalid, []string{"rate \"abc\""}, "queue", "set", "q", "rate=abc")
	if strings.Count(r.Err, "rate \"abc\"") != 1 {
		t.Errorf("the setting is named more than once: %s", r.Err)
	}
}

// An empty standard input is refused, because an earlier program of the pipe probably failed. An empty argument is an
// empty payload.
func TestAnEmptyStandardInputIsNoPayload(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, args := range [][]string{{"schedule", "q"}, {"schedule", "q", "-"}} {
		c.Fails(exit.Invalid, []string{"standard input is empty", "'' for an empty payload"}, args...)
	}
	c.OK("schedule", "q", "--in", "1h", "")
	if n := c.Scheduled("q"); n != 1 {
		t.Errorf("%d messages are scheduled", n)
	}
}
