package looking

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Consumers returns the command consumers.
func Consumers(a *cli.App) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use:   "consumers <queue>",
		Short: "List the consumers of a queue's groups",
		Long: `Lists the consumers of each group, over all partitions.

  PENDING   entries that it holds       OLDEST    the one that it neglects most was last delivered or extended
  IDLE      last sign of life           INACTIVE  last given an entry (by Redis 7.2 and later)
  SEEN      alive: its last sign of life is younger than the visibility timeout; gone? if not

Before Redis 7.2 a read that finds nothing is no sign of life: there, a consumer without
work looks gone. What one that is gone holds is reclaimed by a bridge, and the consumer
itself is deleted once it was idle for an hour.`,
		Example: "  duestream consumers emails\n  duestream consumers emails --group mailer --json",
	}
	cli.GroupFlag(cmd, &group, "of this group")
	return a.WithKnownQueues(cmd, cli.GroupCheck(&group), func(ctx context.Context, op *admin.Admin, args []string) error {
		list, err := op.Consumers(ctx, args[0], group)
		if err != nil {
			return err
		}
		return listConsumers(a, list)
	})
}

func listConsumers(a *cli.App, all []admin.Consumer) error {
	list := a.List("GROUP", "CONSUMER", "PENDING", "OLDEST", "IDLE", "INACTIVE", "SEEN")
	approx := false
	for _, m := range all {
		oldest, inactive, seen := "-", "-", "gone?"
		if m.Pending > 0 {
			oldest = human.Short(time.Duration(m.OldestIdle))
			if m.OldestApprox {
				oldest, approx = "≥ "+oldest, true
			}
		}
		if m.Inactive != nil {
			inactive = human.Short(time.Duration(*m.Inactive))
		}
		if m.Alive {
			seen = "alive"
		}
		list.Add(m, human.OneLine(m.Group, 40), human.OneLine(m.Consumer, 60), strconv.FormatInt(m.Pending, 10), oldest,
			human.Short(time.Duration(m.Idle)), inactive, seen)
	}
	err := list.End("no consumers")
	if approx {
		fmt.Fprintln(a.Text(), "(≥: only the oldest 10,000 entries of the group were looked at, per partition)")
	}
	return err
}
