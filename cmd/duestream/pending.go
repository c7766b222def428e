package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

func (a *app) pending() *cobra.Command {
	var group string
	var filter bridge.PendingFilter
	var limit int
	minIdle := delay{field: "min-idle"}
	cmd := &cobra.Command{
		Use:   "pending <queue> --group <group>",
		Short: "List what a group's workers hold",
		Long: `Lists the entries that were delivered to a group and are neither acknowledged nor
failed yet, oldest first: who holds each, and for how long since it was delivered or
extended. One that is idle for the visibility timeout is reclaimed by a bridge. The
entries of partition 3 are listed as 3/<entry>.`,
		Example: `  duestream pending emails --group mailer
  duestream pending emails --group mailer --min-idle 5m --consumer worker-7`,
		Args: cobra.ExactArgs(1),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if limit < 1 {
				return invalidf("limit %d: must be at least 1", limit)
			}
			if err := errors.Join(bridge.CheckQueue(args[0]), bridge.CheckGroup(group)); err != nil {
				return err
			}
			filter.MinIdle = minIdle.d
			r, err := a.connect(ctx)
			if err != nil {
				return err
			}
			defer r.Close()
			list, err := bridge.Pending(ctx, r, a.prefix, args[0], group, filter, limit)
			if err != nil {
				return err
			}
			return a.print(list, func() { a.printPending(list, limit) })
		}),
	}
	groupFlag(cmd, &group, "consumer group (required)")
	_ = cmd.MarkFlagRequired("group")
	cmd.Flags().StringVar(&filter.Consumer, "consumer", "", "held by this consumer")
	cmd.Flags().Var(&minIdle, "min-idle", "idle for at least so long")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) printPending(list []bridge.PendingEntry, limit int) {
	if len(list) == 0 {
		fmt.Fprintln(a.out, "nothing is pending")
		return
	}
	rows := [][]string{{"ENTRY", "ID", "CONSUMER", "IDLE", "DELIVERIES", "ATTEMPT"}}
	for _, p := range list {
		id, attempt := oneLine(p.ID, 40), strconv.Itoa(p.Attempt)
		if p.BodyLost {
			id, attempt = "(deleted)", "-"
		}
		entry := p.Entry
		if p.Partition > 0 {
			entry = fmt.Sprintf("%d/%s", p.Partition, p.Entry)
		}
		rows = append(rows, []string{
			entry, orDash(id), oneLine(p.Consumer, 60), short(time.Duration(p.Idle)), strconv.FormatInt(p.Deliveries, 10), attempt,
		})
	}
	table(a.out, rows)
	if len(list) == limit {
		fmt.Fprintf(a.out, "(there may be more: see --limit)\n")
	}
}
