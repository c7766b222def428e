package messages

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func bulkCancel(a *cli.App) *cobra.Command {
	var o bulkFlags
	cmd := &cobra.Command{
		Use:   "cancel <queue> [<id>...]",
		Short: "Cancel many scheduled messages",
		Long: `Cancels scheduled messages: those counted as cancelled will never be delivered. Of messages
selected by flags it says on a terminal how many they are, and asks; elsewhere they need
--yes. Try --dry-run first. To keep them as dead letters, use bulk expire.`,
		Example: `  duestream bulk cancel emails --id-prefix order-42- --dry-run
  duestream bulk cancel emails --header tenant=acme --rate 1000/s --yes
  duestream bulk cancel emails --ids-from paid.txt`,
	}
	o.flags(cmd)
	agreed := cli.AskConsent(cmd)
	asks := func(ids []string) bool { return !o.named(ids) && !o.dryRun }
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := o.check(args[1:]); err != nil {
			return err
		}
		if asks(args[1:]) {
			return agreed.Possible(a, "every scheduled message that the flags select (--dry-run shows them)")
		}
		return o.read(a, args[1:])
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		bulk, queue := op.Bulk(), args[0]
		if asks(args[1:]) && !agreed.Yes {
			found, err := bulk.Cancel(ctx, queue, o.filter, admin.BulkOptions{DryRun: true})
			if err == nil && found.Changed > 0 {
				err = agreed.Ask(ctx, a, fmt.Sprintf("Cancel %s of %s for good?", human.Counted(found.Changed, "message"), queue))
			}
			if err != nil {
				return err
			}
		}
		return changeMany(ctx, a, queue, &o, bulk.Cancel, "cancelled", "")
	})
}
