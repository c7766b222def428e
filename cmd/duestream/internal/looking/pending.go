package looking

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Pending returns the command pending.
func Pending(a *cli.App) *cobra.Command {
	var group string
	var filter admin.PendingFilter
	var limit int
	cmd := &cobra.Command{
		Use:   "pending <queue> <group>",
		Short: "List the entries that a group's workers hold",
		Long: `Lists the entries that were delivered to a group and are neither acknowledged nor
failed yet, oldest first.

  CONSUMER    consumer that holds the entry
  HELD        time since the entry was delivered to that consumer, or less
  IDLE        time since the entry was delivered, or last extended
  DELIVERIES  how often the entry was delivered, by the server's count
  ATTEMPT     the current attempt; with "cancelled" if the message was cancelled meanwhile

A bridge reclaims an entry that is idle for the visibility timeout. If an entry is held
for long and is not idle, its handler takes long, or hangs. When a worker extends an
entry, Redis forgets when it was delivered. HELD is then too short, unless a bridge saw
the entry before its first extension. The entries of partition 3 are listed as
3/<entry>. The group may be given as --group, too.`,
		Example: "  duestream pending emails mailer\n  duestream pending emails mailer --min-idle 1m --limit 1000 --json",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || len(args) > 2:
				return errors.New("name a queue and a group")
			case len(args) == 2 && group != "" && group != args[1]:
				return fmt.Errorf("group %q and --group %q: give one", args[1], group)
			case len(args) == 1 && group == "":
				return errors.New("name a group: `duestream consumers <queue>` lists them")
			}
			return nil
		},
	}
	cli.GroupFlag(cmd, &group, "consumer group")
	cmd.Flags().StringVar(&filter.Consumer, "consumer", "", "only entries that this consumer holds")
	flags.DelayVar(cmd.Flags(), &filter.MinIdle, "min-idle", "only entries that are idle for at least this time")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this many entries")
	return a.WithKnownQueues(cmd, func([]string) error {
		if limit < 1 {
			return usage.Errorf("limit %d: must be at least 1", limit)
		}
		return cli.CheckGroup(group)
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		if len(args) == 2 {
			group = args[1]
		}
		list, err := op.Pending(ctx, args[0], group, filter, limit)
		if err != nil {
			return err
		}
		more, err := moreText(ctx, op, args[0], group, filter, len(list), limit)
		if err != nil {
			return err
		}
		return listPending(a, list, more)
	})
}

// moreText returns a text about the entries that were not listed, with their number if it is known.
func moreText(
	ctx context.Context, op *admin.Admin, queue, group string, f admin.PendingFilter, listed, limit int,
) (string, error) {
	if listed < limit {
		return "", nil
	}
	if f.MinIdle > 0 { // Redis cannot count entries by their idle time
		return "(there may be more: see --limit)", nil
	}
	n, err := op.PendingCount(ctx, queue, group, f.Consumer)
	if err != nil || n <= int64(listed) {
		return "", err
	}
	return fmt.Sprintf("(and %s more: see --limit)", human.Thousands(n-int64(listed))), nil
}

func listPending(a *cli.App, all []admin.PendingEntry, more string) error {
	list := a.List("ENTRY", "ID", "CONSUMER", "HELD", "IDLE", "DELIVERIES", "ATTEMPT")
	for _, p := range all {
		id, attempt := human.OneLine(p.ID, 40), strconv.Itoa(p.Attempt)
		if p.BodyLost {
			id, attempt = "(deleted)", "-"
		}
		if p.Cancelled {
			attempt += ", cancelled"
		}
		entry := p.Entry
		if p.Partition > 0 {
			entry = fmt.Sprintf("%d/%s", p.Partition, p.Entry)
		}
		list.Add(p, entry, human.OrDash(id), human.OneLine(p.Consumer, 60), human.Short(time.Duration(p.Held)),
			human.Short(time.Duration(p.Idle)), strconv.FormatInt(p.Deliveries, 10), attempt)
	}
	err := list.Finish("nothing is pending")
	a.More(more)
	return err
}
