package main

import "testing"

func TestNoErrorOfTheCommandLineQuotesALibrary(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for says, args := range map[string][]string{
		"--file and --id exclude each other":               {"schedule", "q", "--id", "a", "--file", "f"},
		"--expires-at and --expires-in exclude each other": {"schedule", "q", "--expires-in", "1h", "--expires-at", "2030-01-01T00:00:00Z", "x"},
		`--limit "ten": must be a whole number`:            {"dead", "list", "q", "--limit", "ten"},
		`--max-attempts "1e3": must be a whole number`:     {"schedule", "q", "--max-attempts", "1e3", "x"},
		`--create "maybe": must be true or false`:          {"pause", "q", "--create=maybe"},
		`--limit "99999999999999999999": must be a whole`:  {"dead", "list", "q", "--limit", "99999999999999999999"},
	} {
		c.fails(exitInvalid, []string{says}, args...)
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
