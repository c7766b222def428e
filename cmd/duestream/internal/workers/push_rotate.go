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
		Long: `Makes a new signing key, and prints it once. Requests are signed with the new key and
with the former one, so the receiver may change to the new key at any time. Afterwards
run the command with --drop-old, to sign with the new key alone. A third, older key is
dropped at once.`,
		Example: "  duestream push rotate orders --group partner\n  duestream push rotate orders --group partner --drop-old",
	}
	f := cmd.Flags()
	f.StringVarP(&name, "group", "g", "", "consumer group (required)")
	f.StringVar(&file, "key-file", "", "file with the new key, whsec_…; - is standard input; default: a key is made")
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
		newKey, err := op.RotatePushKey(ctx, args[0], name, key)
		if key != "" {
			newKey = "" // not printed, because the user gave the key
		}
		if err != nil {
			return noteUncertainKey(a, err, newKey)
		}
		return printTarget(a, pushChanged{args[0], name, "rotated", newKey})
	})
}
