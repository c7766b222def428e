package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// days matches durations that begin with days, which the standard library does not know.
var days = regexp.MustCompile(`^([0-9]+)d(.*)$`)

// parseDuration reads 500ms, 15m, 1h30m, 7d, 1d12h.
func parseDuration(text string) (d time.Duration, err error) {
	if m := days.FindStringSubmatch(text); m != nil {
		var n int64
		if _, err := fmt.Sscan(m[1], &n); err != nil || n > 36500 {
			return 0, fmt.Errorf("%q is out of range", text)
		}
		d, text = time.Duration(n)*24*time.Hour, m[2]
	}
	if text == "" && d > 0 {
		return d, nil
	}
	rest, err := time.ParseDuration(text)
	if err != nil || rest < 0 && d > 0 {
		return 0, errors.New("must be a duration, like 500ms, 15m, 1h30m or 7d")
	}
	return d + rest, nil
}

// duration is a duration of a flag or an environment variable: all of them are read alike, days included. Negative ones are refused.
type duration time.Duration

// Set implements pflag.Value and envconfig.Setter.
func (d *duration) Set(text string) error {
	parsed, err := parseDuration(text)
	if err != nil {
		return err
	}
	if parsed < 0 {
		return errors.New("must not be negative")
	}
	*d = duration(parsed)
	return nil
}

func (d *duration) Type() string { return "duration" }

func (d *duration) String() string {
	if *d == 0 {
		return "0s"
	}
	return human.Short(time.Duration(*d))
}

// durationVar adds a flag for a duration.
func durationVar(f *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	f.Var((*duration)(d), name, usage)
}

// delay is a flag for a duration from zero to the longest delay there is.
type delay struct {
	field string
	d     time.Duration
	set   bool
}

func (f *delay) Set(text string) (err error) {
	f.set = true
	if f.d, err = parseDuration(text); err != nil {
		return err
	}
	return admin.CheckDelay(f.field, f.d)
}

func (f *delay) Type() string { return "duration" }

func (f *delay) String() string {
	if f.d == 0 {
		return ""
	}
	return human.Short(f.d)
}

// instant is a flag for a point in time.
type instant struct {
	field string
	t     time.Time
}

func (f *instant) Set(text string) (err error) {
	if f.t, err = time.Parse(time.RFC3339, text); err != nil {
		return fmt.Errorf("must be RFC 3339 with a time zone, like %s", time.Now().Add(time.Hour).Format(time.RFC3339))
	}
	return admin.CheckTime(f.field, f.t)
}

func (f *instant) Type() string { return "time" }

func (f *instant) String() string {
	if f.t.IsZero() {
		return ""
	}
	return f.t.Format(time.RFC3339)
}

// headers is a repeatable flag for name=value.
type headers map[string]string

func (f *headers) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("must be name=value")
	}
	if _, twice := (*f)[name]; twice {
		return fmt.Errorf("header %q is given twice", name)
	}
	if *f == nil {
		*f = headers{}
	}
	(*f)[name] = value
	return admin.CheckHeaders(*f)
}

func (f *headers) Type() string   { return "name=value" }
func (f *headers) String() string { return "" }

// when holds the flags --in and --at.
type when struct {
	in delay
	at instant
}

func (w *when) flags(cmd *cobra.Command, what string) {
	w.in.field, w.at.field = "in", "at"
	cmd.Flags().Var(&w.in, "in", what+" so long after now, by the clock of Redis: 500ms, 15m, 7d")
	cmd.Flags().Var(&w.at, "at", what+" at this time: RFC 3339")
	cmd.MarkFlagsMutuallyExclusive("in", "at")
}

// option returns the chosen time; now when there is none.
func (w *when) option() bridge.Option {
	if !w.at.t.IsZero() {
		return bridge.At(w.at.t)
	}
	return bridge.In(w.in.d)
}

// durability is a flag for what a write waits for.
type durability struct{ d bridge.Durability }

func (f *durability) Set(text string) (err error) {
	f.d, err = bridge.ParseDurability(text)
	return err
}

func (f *durability) Type() string   { return "level" }
func (f *durability) String() string { return f.d.String() }

// durabilityFlag adds --durability to a command that writes.
func (a *app) durabilityFlag(cmd *cobra.Command) {
	cmd.Flags().Var(&a.durability, "durability", "wait until it is on disk (fsynced; Redis 7.2), on n replicas (replicated=n), or both (fsynced,replicated=n)")
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions([]string{"accepted", "fsynced", "replicated=1"}, cobra.ShellCompDirectiveNoFileComp))
}

// mayBeEmpty are the flags whose value may be empty: an empty payload is a payload.
var mayBeEmpty = []string{"payload"}

// checkEmpty refuses flags that are given without a value. Most likely that is a variable of a script that is not set, and --id "$ID" would
// make a random ID, --group "$GROUP" select all groups, --redis "$URL" go to another server.
func checkEmpty(cmd *cobra.Command) error {
	var errs []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == "" && f.Value.Type() == "string"
		if list, ok := f.Value.(pflag.SliceValue); ok { // of which one may be
			empty = slices.Contains(list.GetSlice(), "")
		}
		if empty && !slices.Contains(mayBeEmpty, f.Name) {
			errs = append(errs, invalidf("--%s is given, but empty: give it a value, or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}
