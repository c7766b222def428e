package flags

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// MayBeEmpty are the flags whose value may be empty: an empty payload is a payload.
var MayBeEmpty = []string{"payload"}

// CheckEmpty refuses flags that are given without a value. Most likely that is a variable of a script that is not set, and --id
// "$ID" would make a random ID, --group "$GROUP" select all groups, --redis "$URL" go to another server.
func CheckEmpty(cmd *cobra.Command) error {
	var errs []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == "" && f.Value.Type() == "string"
		if list, ok := f.Value.(pflag.SliceValue); ok { // of which one may be
			empty = slices.Contains(list.GetSlice(), "")
		}
		if empty && !slices.Contains(MayBeEmpty, f.Name) {
			errs = append(errs, usage.Errorf("--%s is given, but empty: give it a value, or leave it out", f.Name))
		}
	})
	return errors.Join(errs...)
}
