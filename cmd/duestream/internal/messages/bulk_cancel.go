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
		Long: `Cancels scheduled messages. A message that is counted as cancelled is never delivered.
If flags select the messages, the command prints their number and asks first. Without a
terminal it needs --yes. Try --dry-run first. To keep the messages as dead letters, use
bulk expire.`,
		Example: `  duestream bulk cancel emails --id-prefix order-42- --dry-run
  duestream bulk cancel emails --header tenant=acme --rate 1000/s --yes
  duestream bulk cancel emails --ids-from paid.txt`,
	}
	o.flags(cmd)
	consent := cli.ConsentFlag(cmd)
	needsConsent := func(ids []string) bool { return !o.byID(ids) && !o.dryRun }
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := o.check(args[1:]); err != nil {
			return err
		}
		if needsConsent(args[1:]) {
			return consent.CheckPossible(a, "every scheduled message that the flags select (--dry-run shows them)")
		}
		return o.readIDs(a, args[1:])
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		bulk, queue := op.Bulk(), args[0]
		cancel := bulk.Cancel
		if needsConsent(args[1:]) && !consent.Yes {
			found, err := bulk.Cancel(ctx, queue, o.filter, admin.BulkOptions{DryRun: true})
			if err != nil {
				return err
			}
			if found.Changed == 0 { // nobody is asked, so what matches from now on stays
				cancel = func(context.Context, string, admin.BulkFilter, admin.BulkOptions) (admin.BulkResult, error) {
					return found, nil
				}
			} else {
				question := fmt.Sprintf("Cancel %s of %s for good?", human.Counted(found.Changed, "message"), queue)
				if err := consent.Ask(ctx, a, question); err != nil {
					return err
				}
			}
		}
		return changeMany(ctx, a, queue, &o, cancel, "cancelled", "")
	})
}
