package main

import (
	"slices"
	"strings"
	"testing"
)

func TestNoErrorOfTheCommandLineQuotesALibrary(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
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
		if slices.Contains(args, "--json") {
			says = strings.ReplaceAll(says, `"`, `\"`)
		}
		c.fails(exitInvalid, []string{says}, args...)
	}
}

// The bug: a command that had done nothing reported "partly done".
func TestNothingDoneIsNotCalledPartlyDone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for says, lines := range map[string]string{
		"nothing done: refused: 2 lines": "{\n}\n", "partly done: refused: 1 line": `{"payload":"x"}` + "\n{\n",
	} {
		if r := c.runIn(lines, "schedule", "q", "--file", "-"); r.code != exitPartly || !strings.Contains(r.err, says) {
			t.Errorf("exit code %d, want %q: %s", r.code, says, r.err)
		}
	}
	letter := c.oneLetter("x")
	c.do("XGROUP", "DESTROY", c.key("q", "stream"), "g")
	c.fails(exitPartly, []string{"nothing done: there is no group g"}, "dead", "edit", "q", letter, "--payload", "y")
	c.fails(exitPartly, []string{"nothing done: not redriven: 1 letter"}, "dead", "redrive", "q", letter)
}

func TestAGroupThatIsNotThereIsNamedInPlainWords(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("schedule", "q", "--in", "1h", "x")
	r := c.fails(exitNotFound, []string{"duestream: group nosuch of queue q: no such consumer group\n"}, "pending", "q", "nosuch")
	if strings.Contains(r.err, "NOGROUP") {
		t.Error(r.err)
	}
	r = c.fails(exitInvalid, []string{"rate \"abc\""}, "queue", "set", "q", "rate=abc")
	if strings.Count(r.err, "rate \"abc\"") != 1 {
		t.Errorf("said more than once: %s", r.err)
	}
}

func TestAnEmptyStandardInputIsNoPayload(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, args := range [][]string{{"schedule", "q"}, {"schedule", "q", "-"}} {
		c.fails(exitInvalid, []string{"standard input is empty", "'' for an empty payload"}, args...)
	}
	c.ok("schedule", "q", "--in", "1h", "")
	if n := c.scheduled("q"); n != 1 {
		t.Errorf("%d messages are scheduled", n)
	}
}
