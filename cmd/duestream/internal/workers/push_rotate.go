package workers

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

func pushRotate(a *cli.App) *cobra.Command {
	var name, file string
	var drop bool
	cmd := &cobra.Command{
		Use:   "rotate <queue>",
		Short: "Give a target a new signing key",
		Long: `Makes a new signing key, and prints it this once. Requests are signed with it and with the
one before, so that whoever verifies them may change at any time. Afterwards --drop-old has
them signed with the new one alone. A key that is older than both is dropped at once.`,
		Example: "  duestream push rotate orders --group partner\n  duestream push rotate orders --group partner --drop-old",
	}
	f := cmd.Flags()
	f.StringVarP(&name, "group", "g", "", "consumer group (required)")
	f.StringVar(&file, "key-file", "", "file with the new key, whsec_…; - is standard input; default: one is made")
	f.BoolVar(&drop, "drop-old", false, "sign with the newest key alone from now on")
	cmd.MarkFlagsMutuallyExclusive("key-file", "drop-old")
	_ = cmd.MarkFlagRequired("group")
	var key string
	check := func([]string) (err error) {
		if file != "" {
			if key, err = readKey(file, a.In); err != nil {
				return err
			}
		}
		return admin.CheckGroup(name)
	}
	return a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if drop {
			if err := op.DropOldPushKey(ctx, args[0], name); err != nil {
				return err
			}
			return printTarget(a, pushChanged{Queue: args[0], Group: name, Did: "dropped the old key"})
		}
		made, err := op.RotatePushKey(ctx, args[0], name, key)
		if key != "" {
			made = "" // the user gave the key, and has it
		}
		if err != nil {
			return keyOf(a, err, made)
		}
		return printTarget(a, pushChanged{args[0], name, "rotated", made})
	})
}
