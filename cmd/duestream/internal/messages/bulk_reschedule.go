package messages

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

func bulkReschedule(a *cli.App) *cobra.Command {
	var o bulkFlags
	var w flags.When
	cmd := &cobra.Command{
		Use:   "reschedule <queue> [<id>...] (--in <duration> | --at <time>)",
		Short: "Move many scheduled messages to another time",
		Long: `Moves scheduled messages to one due time. With --spread, the messages become due evenly
over a period of that length, which starts at the due time. A message gets the same
delay in each run, because a hash of its ID decides.

--in counts from now, once for all messages. The command prints the resulting due time.
To continue a run that ended early, repeat the command with the printed time in --at. A
message that already has its due time is left alone, and counted.`,
		Example: `  duestream bulk reschedule emails --id-prefix order-42- --in 2h
  duestream bulk reschedule callbacks --group partner-a --in 0s --rate 50/s
  duestream bulk reschedule emails --ids-from late.txt --at 2026-12-24T18:00:00Z`,
	}
	o.flags(cmd)
	w.Flags(cmd)
	flags.DelayVar(cmd.Flags(), &o.spread, "spread",
		"delay each message by a further 0 to this; a hash of its ID decides by how much")
	cmd.MarkFlagsOneRequired("in", "at")
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := o.check(args[1:]); err != nil {
			return err
		}
		return o.readIDs(a, args[1:])
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		move := func(
			ctx context.Context, queue string, filter admin.BulkFilter, options admin.BulkOptions,
		) (admin.BulkResult, error) {
			options.Spread = o.spread
			return op.Bulk().Reschedule(ctx, queue, filter, w.In, w.At, options)
		}
		return changeMany(ctx, a, args[0], &o, move, "moved", "already due at that time")
	})
}
