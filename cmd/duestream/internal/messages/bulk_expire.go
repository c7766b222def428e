package messages

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

func bulkExpire(a *cli.App) *cobra.Command {
	var o bulkFlags
	cmd := &cobra.Command{
		Use:   "expire <queue> [<id>...]",
		Short: "Make dead letters of many scheduled messages",
		Long: `Expires scheduled messages now. They are not delivered. Bridges turn them into dead
letters with the reason expired, at once or when the queue is resumed. "duestream dead
redrive" delivers them after all.`,
		Example: `  duestream bulk expire emails --due-until 2026-01-01T00:00:00Z --dry-run
  duestream bulk expire emails --id-prefix campaign-7- --rate 1000/s`,
	}
	o.flags(cmd)
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := o.check(args[1:]); err != nil {
			return err
		}
		return o.readIDs(a, args[1:])
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		return changeMany(ctx, a, args[0], &o, op.Bulk().Expire, "expired", "already expired")
	})
}
