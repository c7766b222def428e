// Package flags parses the values of flags: durations with days, times, headers, durability. Values outside their
// limits are refused at once.
package flags

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/internal/written"
)

// Duration is the value of a flag or an environment variable. It accepts days, and refuses negative durations.
type Duration time.Duration

// Set implements pflag.Value and envconfig.Setter.
func (d *Duration) Set(text string) error {
	parsed, err := written.ParseDuration(text)
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
	if *f.d, err = written.ParseDuration(text); err != nil {
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
