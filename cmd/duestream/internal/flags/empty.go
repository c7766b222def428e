package flags

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// MayBeEmpty are the flags that accept an empty value. An empty payload is valid.
var MayBeEmpty = []string{"payload"}

// CheckEmpty refuses flags with an empty value, because the cause is probably an unset variable of a script. With an
// unset variable, --id "$ID" would make a random ID, --group "$GROUP" would select all groups, and --redis "$URL" would
// connect to another server.
func CheckEmpty(cmd *cobra.Command) error {
	var errs []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == "" && f.Value.Type() == "string"
		if list, ok := f.Value.(pflag.SliceValue); ok { // each value of a list is checked
			empty = slices.Contains(list.GetSlice(), "")
		}
		if empty && !slices.Contains(MayBeEmpty, f.Name) {
			errs = append(errs, usage.Errorf("--%s is given, but empty: give it a value, or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}
