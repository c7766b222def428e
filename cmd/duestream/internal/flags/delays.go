package flags

import (
	"fmt"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// ParseDelays parses a list like 1m,3m,5m. 0 is the empty list.
func ParseDelays(text string) (bridge.Delays, error) {
	if text == "0" || text == "0s" {
		return "", nil
	}
	var all []time.Duration
	for word := range strings.SplitSeq(text, ",") {
		d, err := ParseDuration(word)
		if err != nil {
			return "", fmt.Errorf("must be delays with commas between, like 1m,3m,5m, or 0: %q %w", word, err)
		}
		all = append(all, d)
	}
	list := bridge.NewDelays(all...)
	return list, admin.CheckDelays(list)
}

// Delays is the value of a flag or an environment variable: a list of delays.
type Delays bridge.Delays

// Set implements pflag.Value and envconfig.Setter.
func (d *Delays) Set(text string) error {
	list, err := ParseDelays(text)
	*d = Delays(list)
	return err
}

// Type implements pflag.Value.
func (d *Delays) Type() string { return "durations" }

// String implements pflag.Value.
func (d *Delays) String() string { return ShowDelays(bridge.Delays(*d)) }

// ShowDelays formats a list in the form that ParseDelays parses.
func ShowDelays(list bridge.Delays) string {
	var words []string
	for _, one := range list.List() {
		words = append(words, human.Exact(one))
	}
	return strings.Join(words, ",")
}
