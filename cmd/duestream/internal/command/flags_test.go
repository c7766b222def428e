package command_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Regression: the refused value of a flag was printed whole, whatever its size. It is now cut, and never in the middle
// of a character.
func TestRefusedFlagsAreShownShortened(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for _, flags := range [][]string{{"--header", "h=" + strings.Repeat("é", 50_000)}, {"--in", strings.Repeat("é", 50_000)}} {
		r := c.Run(append([]string{"schedule", "q", "x"}, flags...)...)
		if r.Code != exit.Invalid || len(r.Err) > 1000 || !strings.Contains(r.Err, flags[0]) ||
			strings.Contains(r.Err, "\ufffd") {
			t.Errorf("exit code %d, %d bytes: %.1000s", r.Code, len(r.Err), r.Err)
		}
	}
}

// Regression: with an unset variable, --id "$ID" made a random ID, and --group "$GROUP" selected all groups. Every flag
// for text refuses an empty value, except those in flags.MayBeEmpty.
func TestFlagsThatAreGivenAreNotEmpty(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	c.Fails(exit.Invalid, []string{"--id is given, but empty"}, "schedule", "q", "--id", "", "x")
	c.Fails(exit.Invalid, []string{"--group is given, but empty"}, "dead", "purge", "q", "--group", "", "--older-than",
		"1d", "--yes")
	c.Fails(exit.Invalid, []string{"--redis is given, but empty"}, "stats", "--redis", "")
	c.Fails(exit.Invalid, []string{"--queue is given, but empty"}, "find", "one", "--queue", "q", "--queue", "")
	lists := 0
	for _, cmd := range tree() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "intSlice" { // a number cannot be empty
				return
			}
			if _, list := f.Value.(pflag.SliceValue); list { // a second value must not hide the empty one
				lists++
				if err := f.Value.Set("x"); err != nil {
					t.Error(err)
				}
			} else if f.Value.Type() != "string" || slices.Contains(flags.MayBeEmpty, f.Name) {
				return
			}
			if err := cmd.ParseFlags([]string{"--" + f.Name, ""}); err != nil {
				t.Errorf("%s --%s '': %v", cmd.CommandPath(), f.Name, err)
			}
			if err := flags.CheckEmpty(cmd); err == nil || !strings.Contains(err.Error(), "--"+f.Name+" is given, but empty") {
				t.Errorf("%s --%s '': %v", cmd.CommandPath(), f.Name, err)
			}
		})
	}
	if lists == 0 {
		t.Error("there are no flags for lists: are they of another type?")
	}
}

// Regression: only some flags accepted days, and the environment did not. Every flag of type duration, the environment
// and queue set now read the same forms.
func TestDurationsAreReadAlikeEverywhere(t *testing.T) {
	flags := 0
	for _, cmd := range tree() {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			flags++
			for text, good := range map[string]bool{"1d12h": true, "500ms": true, "1h30m": true, "-1s": false, "soon": false,
				"1w": false, "": false, "99999999d": false} {
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
	if _, p, err := settings.Read(); err != nil || p.RetryMax != 24*time.Hour || p.VisibilityTimeout != 36*time.Hour {
		t.Errorf("%v, %v", p, err)
	}
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "visibility_timeout=1d12h")
	var policy struct {
		VisibilityTimeout int64 `json:"visibility_timeout_ms"`
	}
	c.JSON(&policy, "queue", "show", "q")
	if policy.VisibilityTimeout != (36 * time.Hour).Milliseconds() {
		t.Errorf("%+v", policy)
	}
}
