// Package flags parses the values of flags: durations with days, times, headers, durability. Values outside their
// limits are refused at once.
package flags

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/pflag"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// days matches a duration that begins with days, a unit that the standard library lacks.
var days = regexp.MustCompile(`^([0-9]+)d(.*)$`)

// ParseDuration parses 500ms, 15m, 1h30m, 7d, 1d12h.
func ParseDuration(text string) (d time.Duration, err error) {
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

// Duration is the value of a flag or an environment variable. It accepts days, and refuses negative durations.
type Duration time.Duration

// Set implements pflag.Value and envconfig.Setter.
func (d *Duration) Set(text string) error {
	parsed, err := ParseDuration(text)
	if err != nil {
		return err
	}
	if parsed < 0 {
		return errors.New("must not be negative")
	}
	*d = Duration(parsed)
	return nil
}

// Type implements pflag.Value.
func (d *Duration) Type() string { return "duration" }

// String implements pflag.Value.
func (d *Duration) String() string {
	if *d == 0 {
		return "0s"
	}
	return human.Short(time.Duration(*d))
}

// DurationVar adds a flag for a duration.
func DurationVar(f *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	f.Var((*Duration)(d), name, usage)
}

// DelayVar adds a flag for a delay, from zero to the longest allowed delay. The value of d is the default.
func DelayVar(f *pflag.FlagSet, d *time.Duration, name, usage string) {
	f.Var(&delay{name, d}, name, usage)
}

type delay struct {
	field string
	d     *time.Duration
}

// Set implements pflag.Value.
func (f *delay) Set(text string) (err error) {
	if *f.d, err = ParseDuration(text); err != nil {
		return err
	}
	return admin.CheckDelay(f.field, *f.d)
}

// Type implements pflag.Value.
func (f *delay) Type() string { return "duration" }

// String implements pflag.Value.
func (f *delay) String() string {
	if *f.d == 0 {
		return ""
	}
	return human.Short(*f.d)
}
