package flags

import (
	"strconv"

	"github.com/spf13/pflag"
)

// Switch is a flag that is on, off, or not given.
type Switch struct{ on, given bool }

// SwitchVar adds the flag of a switch: --name is on, --name=false is off.
func SwitchVar(f *pflag.FlagSet, s *Switch, name, usage string) {
	f.VarPF(s, name, "", usage).NoOptDefVal = "true"
}

// Or returns the value of the flag, or defaultValue if the flag was not given.
func (f *Switch) Or(defaultValue bool) bool {
	if f.given {
		return f.on
	}
	return defaultValue
}

// Set implements pflag.Value.
func (f *Switch) Set(text string) (err error) {
	f.on, err = strconv.ParseBool(text)
	f.given = err == nil
	return err
}

// Type implements pflag.Value.
func (f *Switch) Type() string { return "bool" }

// String implements pflag.Value.
func (f *Switch) String() string { return strconv.FormatBool(f.on) }
