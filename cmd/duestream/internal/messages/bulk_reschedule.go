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
		Long: `Moves scheduled messages to one due time, or evenly over a time from then on, --spread; a
message has the same place in it each time. With --in it is reckoned from now, once for all
of them; to go on with a run that ended early, give the time that it printed by --at: what
is due then already is left alone, and counted.`,
		Example: `  duestream bulk reschedule emails --id-prefix order-42- --in 2h
  duestream bulk reschedule callbacks --group partner-a --in 0s --rate 50/s
  duestream bulk reschedule emails --ids-from late.txt --at 2026-12-24T18:00:00Z`,
	}
	o.flags(cmd)
	w.Flags(cmd)
	flags.DelayVar(cmd.Flags(), &o.spread, "spread", "delay each by a further 0 to this, chosen by hashing its ID")
	cmd.MarkFlagsOneRequired("in", "at")
	return a.WithKnownQueues(cmd, func(args []string) error {
		if err := o.check(args[1:]); err != nil {
			return err
		}
		return o.read(a, args[1:])
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		move := func(ctx context.Context, queue string, f admin.BulkFilter, bo admin.BulkOptions) (admin.BulkResult, error) {
			bo.Spread = o.spread
			return op.Bulk().Reschedule(ctx, queue, f, w.In, w.At, bo)
		}
		return changeMany(ctx, a, args[0], &o, move, "moved", "due then already")
	})
}
