package flags

import (
	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/internal/written"
)

// Delays is the value of a flag or an environment variable: a list of delays.
type Delays bridge.Delays

// Set implements pflag.Value and envconfig.Setter.
func (d *Delays) Set(text string) error {
	list, err := written.ParseDelays(text)
	*d = Delays(list)
	return err
}

// Type implements pflag.Value.
func (d *Delays) Type() string { return "durations" }

// String implements pflag.Value.
func (d *Delays) String() string { return written.Delays(bridge.Delays(*d)) }
