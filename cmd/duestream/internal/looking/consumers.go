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

  PENDING   entries that the consumer holds
  OLDEST    longest time since one of these entries was delivered or extended
  IDLE      time since the consumer's last sign of life
  INACTIVE  time since the consumer last got an entry (Redis 7.2 and later)
  SEEN      alive if IDLE is below the visibility timeout, else gone?

Before Redis 7.2 a read that finds nothing is no sign of life, so a consumer without
work looks gone. A bridge reclaims the entries of a consumer that is gone, and deletes
the consumer after it has been idle for an hour.`,
		Example: "  duestream consumers emails\n  duestream consumers emails --group mailer --json",
	}
	cli.GroupFlag(cmd, &group, "only consumers of this group")
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
	err := list.Finish("no consumers")
	if approx {
		fmt.Fprintln(a.Text(), "(≥: only the oldest 10,000 entries of the group were looked at, per partition)")
	}
	return err
}
