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
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/duestream/duestream/bridge"
)

// This file holds what all commands have in common.

// printing returns commands that print something about a queue q with one scheduled message "one", and about a queue that nobody knows.
func printing(c *cli) (fine, fails [][]string) {
	c.t.Helper()
	c.ok("schedule", "q", "--id", "one", "--in", "1h", "hello")
	c.redis().Do(c.t.Context(), c.redis().B().XgroupCreate().Key(c.key("q", "stream")).Group("g").Id("0").Mkstream().Build())
	for _, line := range []string{
		"schedule q --in 1h x", "show q one", "find one", "stats", "stats q", "peek q", "queue show", "queue show q", "queue partitions q", "queue partitions q 1",
		"queue set q max_attempts=5", "pause q", "resume q", "functions show", "version", "doctor --quick --severity error", "dead purge q --all --yes --dry-run",
		"dead redrive q --all --dry-run", "top --once --interval 100ms", "reschedule q one --in 2h", "conformance --worker --list",
	} {
		fine = append(fine, strings.Fields(line))
	}
	for _, line := range []string{
		"show q two", "find two", "dead show q 1-1", "cancel q two", "reschedule q two --in 1s", "stats unknown", "schedule q --id one x", "health", "stats --nonsense",
		"peek", "dead purge q --all", "stats -n 3", "schedule q --in nonsense x", "work q --json", "pending q nobody",
	} {
		fails = append(fails, strings.Fields(line))
	}
	return fine, fails
}

// JSON came in three shapes, indented, as lists and as lines, and errors never as JSON.
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
	for _, empty := range []string{"dead list q", "consumers q", "pending q g"} { // a list of nothing has no lines
		if out := c.ok(append(strings.Fields(empty), "--json")...); out != "" {
			t.Errorf("%s: %s", empty, out)
		}
	}
}

// A full disk, or a pipe that is gone: what was printed was lost, and the exit code was 0.
func TestOutputThatIsLostIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	fine, _ := printing(c)
	c.ok("resume", "q")
	commands := slices.Concat(fine, [][]string{{"cancel", "q", "one"}, {"export", "q"}, {"man"}, {"functions", "dump"}, {"completion", "bash"}, {"help", "queue", "set"}, {"stats", "--watch"}, {"--version"}})
	for _, cmd := range tree() {
		commands = append(commands, append(strings.Fields(cmd.CommandPath())[1:], "--help"))
	}
	for _, args := range commands {
		for _, with := range [][]string{nil, {"--json"}} {
			all := slices.Concat(args, with)
			if with != nil && (slices.Contains(args, "--help") || args[0] == "man" || args[0] == "export" || args[0] == "completion" || args[0] == "help" ||
				args[0] == "--version" || slices.Equal(args, []string{"functions", "dump"})) {
				continue
			}
			var errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), patience) // for what would print for ever
			code := run(ctx, c.args(all), strings.NewReader(""), full{}, &errOut)
			cancel()
			if code == exitOK || !strings.Contains(errOut.String(), "no space left") {
				t.Errorf("%q: exit code %d: %s", all, code, &errOut)
			}
		}
	}
}

// full is a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: errors.New("no space left on device")}
}

// A queue whose name was misspelt looked like one that holds nothing.
func TestAQueueThatNobodyKnowsIsNotFound(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, line := range []string{
		"stats q", "stats q --watch", "stats q --partitions", "peek q", "queue show q", "queue show q --group g", "queue partitions q", "pending q g", "consumers q",
		"dead list q", "dead list q --summary", "dead show q 1-1", "dead redrive q --all", "dead purge q --all --yes", "dead edit q 1-1 --payload x", "export q",
		"top q --once", "find one --queue q", "doctor q",
	} {
		c.fails(exitNotFound, []string{"queue q: no such queue", "hint: "}, strings.Fields(line)...)
	}
	client := c.redis()
	if err := client.Do(t.Context(), client.B().Zadd().Key(c.key("q", "due")).ScoreMember().ScoreMember(4102444800000, "one").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.ok("peek", "q") // of a plain producer that registers nothing
}

func TestHelpOfWhatDoesNotExistFails(t *testing.T) {
	t.Parallel()
	c := &cli{t: t}
	for _, line := range []string{"help nope", "help queue nope", "help stats nope", "queue nope", "dead nope", "functions nope", "completion nope", "nope"} {
		c.fails(exitInvalid, []string{"nope"}, strings.Fields(line)...)
	}
	for _, line := range []string{"help", "help queue", "help queue set", "help help", "queue", "dead", "completion"} {
		c.ok(strings.Fields(line)...)
	}
}

// --id "$ID" with a variable that is not set made a random ID, --group "$GROUP" meant all groups.
func TestFlagsThatAreGivenAreNotEmpty(t *testing.T) {
	t.Parallel()
	c := &cli{t: t, url: unreachable}
	c.fails(exitInvalid, []string{"--id is given, but empty"}, "schedule", "q", "--id", "", "x")
	c.fails(exitInvalid, []string{"--group is given, but empty"}, "dead", "purge", "q", "--group", "", "--older-than", "1d", "--yes")
	c.fails(exitInvalid, []string{"--redis is given, but empty"}, "stats", "--redis", "")
	c.fails(exitInvalid, []string{"--queue is given, but empty"}, "find", "one", "--queue", "q", "--queue", "")
	lists := 0
	for _, cmd := range tree() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, list := f.Value.(pflag.SliceValue); list { // a second value makes none of them less empty
				lists++
				if err := f.Value.Set("x"); err != nil {
					t.Error(err)
				}
			} else if f.Value.Type() != "string" || slices.Contains(mayBeEmpty, f.Name) {
				return
			}
			if err := cmd.ParseFlags([]string{"--" + f.Name, ""}); err != nil {
				t.Errorf("%s --%s '': %v", cmd.CommandPath(), f.Name, err)
			}
			if err := checkEmpty(cmd); err == nil || !strings.Contains(err.Error(), "--"+f.Name+" is given, but empty") {
				t.Errorf("%s --%s '': %v", cmd.CommandPath(), f.Name, err)
			}
		})
	}
	if lists == 0 {
		t.Error("there are no flags for lists: are they of another type?")
	}
}

// Days were known to some flags, and not to others, nor to the environment.
func TestDurationsAreReadAlikeEverywhere(t *testing.T) {
	flags := 0
	for _, cmd := range tree() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			flags++
			for text, good := range map[string]bool{"1d12h": true, "500ms": true, "1h30m": true, "-1s": false, "soon": false, "1w": false, "": false, "99999999d": false} {
				if err := f.Value.Set(text); (err == nil) != good {
					t.Errorf("%s --%s %q: %v", cmd.CommandPath(), f.Name, text, err)
				}
			}
		})
	}
	if flags < 10 {
		t.Errorf("%d flags for durations: are there others?", flags)
	}
	t.Setenv("DUESTREAM_RETRY_MAX", "1d")
	t.Setenv("DUESTREAM_VISIBILITY_TIMEOUT", "1d12h")
	if _, p, err := readSettings(); err != nil || p.RetryMax != 24*time.Hour || p.VisibilityTimeout != 36*time.Hour {
		t.Errorf("%v, %v", p, err)
	}
	if d, err := parsePolicy([]string{"visibility_timeout=1d12h"}); err != nil || *d.VisibilityTimeout != 36*time.Hour {
		t.Errorf("%v, %v", d, err)
	}
}

// null became an empty message, and of two values under one name the last one counted.
func TestLinesThatSayTwoThingsOrNoneAreRefused(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`null`: "is not a JSON object", `{"id":null}`: "id: is null", `{"in_ms":null}`: "in_ms: is null", `{"headers":null}`: "headers: is null",
		`{"headers":{"a":null}}`: "headers: a: is null", `{"payload_base64":null}`: "payload_base64: is null",
		`{"id":"a","id":"b"}`: "id: is given twice", `{"payload":"a","payload":"b"}`: "payload: is given twice",
		`{"headers":{"a":"1","a":"2"}}`: "headers: a: is given twice", `{"id":"a","ID":"b"}`: `unknown field "ID"`, `{"Payload":"x"}`: `unknown field "Payload"`,
		`{"id":"\ud800"}`: "half a character", `{"payload":"x\udc00"}`: "half a character", `{"payload":"\ud83d\ud83d\ude00"}`: "half a character",
		`{"headers":{"a":"\uD83D"}}`: "half a character",
	} {
		if m, err := parseLine([]byte(line), 1, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", line, m, err, want)
		}
	}
	for line, want := range map[string]bridge.NewMessage{
		`{"id":"a","payload":null}`: {ID: "a", Payload: []byte("null")}, `{"id":"a","payload":{"b":null,"b":1}}`: {ID: "a", Payload: []byte(`{"b":null,"b":1}`)},
		`{"id":"a","payload":"\ud83d\ude00 \\ud800 \n"}`: {ID: "a", Payload: []byte("😀 \\ud800 \n")},
		`{"id":"a","headers":{"Upper":"\u00e9"}}`:        {ID: "a", Headers: map[string]string{"Upper": "é"}},
	} {
		m, err := parseLine([]byte(line), 1, 0)
		if err != nil || m.ID != want.ID || !bytes.Equal(m.Payload, want.Payload) || m.Headers["Upper"] != want.Headers["Upper"] {
			t.Errorf("%s: %+v, %v", line, m, err)
		}
	}
}

// On a terminal as wide as the title, top cut the last digit of the clock.
func TestTopNeverCutsTheClock(t *testing.T) {
	t.Parallel()
	for width := 30; width < 200; width++ {
		state := busyTop()
		lines, _ := state.frame(width, 24, false)
		if clock := state.now.Format(time.TimeOnly); !strings.HasSuffix(lines[0], "  "+clock) || utf8.RuneCountInString(lines[0]) != width {
			t.Errorf("width %d: %q", width, lines[0])
		}
	}
}
