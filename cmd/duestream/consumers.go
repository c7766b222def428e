package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func (a *app) consumers() *cobra.Command {
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
	groupFlag(cmd, &group, "of this group")
	return a.looks(cmd, groupCheck(&group), func(ctx context.Context, op *admin.Admin, args []string) error {
		list, err := op.Consumers(ctx, args[0], group)
		if err != nil {
			return err
		}
		return a.listConsumers(list)
	})
}

func (a *app) listConsumers(all []admin.Consumer) error {
	list := a.list("GROUP", "CONSUMER", "PENDING", "OLDEST", "IDLE", "INACTIVE", "SEEN")
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
		list.add(m, human.OneLine(m.Group, 40), human.OneLine(m.Consumer, 60), strconv.FormatInt(m.Pending, 10), oldest,
			human.Short(time.Duration(m.Idle)), inactive, seen)
	}
	err := list.end("no consumers")
	if approx {
		fmt.Fprintln(a.text(), "(≥: only the oldest 10,000 entries of the group were looked at, per partition)")
	}
	return err
}
