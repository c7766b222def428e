package recurrences

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

func recurAdd(a *cli.App) *cobra.Command {
	var r bridge.Recurrence
	var headers flags.Headers
	var missed, overlap string
	cmd := &cobra.Command{
		Use:   "add <queue> <name> [payload | -]",
		Short: "Add a recurrence, or change the one of that name",
		Long: `Adds a recurrence to a queue, or changes the one of that name: what was planned of the
former one for later is taken back. Without an argument the payload is empty; "-" is
standard input. Either --cron or --every must be given.

A cron expression has five fields (minute, hour, day of the month, month, day of the week),
or six with seconds in front; @hourly, @daily, @weekly, @monthly and @yearly are known, too.
Where clocks are set: a time of day that does not exist is moved to the end of the gap, one
that comes twice counts the first time. Every hour (hour field *) means every hour that
passes. --every counts from 1970, so it is the same after a change.

Occurrences that no bridge planned in time are missed: the last one is made up for
(--missed once), none (skip), or the last hundred (all).`,
		Example: `  duestream recur add reports nightly --cron @daily --zone Europe/Paris '{"to":"all"}'
  duestream recur add probes ping --every 90s --overlap skip
  duestream recur add sales tick --every 1m --start 2027-01-02T09:00:00+01:00 --count 60`,
		Args: cli.NumberOfArgs(2, 3),
	}
	a.OldBridgesFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&r.Cron, "cron", "", "cron expression: '0 9 * * 1-5', '@daily'")
	f.StringVar(&r.Zone, "zone", "", "time zone of --cron, like Europe/Paris; default UTC")
	flags.DelayVar(f, &r.Every, "every", "recur so often: 1s or more")
	flags.DelayVar(f, &r.Phase, "phase", "shift --every by so much")
	flags.InstantVar(f, &r.Start, "start", "no occurrence before: RFC 3339")
	flags.InstantVar(f, &r.End, "end", "no occurrence after: RFC 3339")
	f.IntVar(&r.Count, "count", 0, "so many occurrences at most; 0 = no bound")
	flags.DelayVar(f, &r.Jitter, "jitter", "each is due so much later at most; up to 24h")
	f.StringVar(&missed, "missed", "", "what becomes of missed occurrences: once (default), skip or all")
	f.StringVar(&overlap, "overlap", "", "while the one before is not done in any group: allow (default), or skip the occurrence")
	f.BoolVar(&r.Paused, "paused", false, "plan nothing until it is resumed")
	f.StringVar(&r.Owner, "owner", "", "label of who keeps it: see recur apply")
	f.Var(&headers, "header", "add a header; may be given again")
	cmd.MarkFlagsMutuallyExclusive("cron", "every")
	cmd.MarkFlagsOneRequired("cron", "every")
	cli.OfferValues(cmd, "missed", "once", "skip", "all")
	cli.OfferValues(cmd, "overlap", "allow", "skip")
	fill := func(args []string) error {
		r.Queue, r.Name, r.Headers = args[0], args[1], headers
		r.Missed, r.Overlap = admin.Missed(missed), admin.Overlap(overlap)
		_, err := r.Compile()
		return err
	}
	return a.WithAdmin(cmd, fill, func(ctx context.Context, op *admin.Admin, args []string) error {
		if len(args) == 3 {
			payload, err := cli.ReadPayload(a, args[2:])
			if err != nil {
				return err
			}
			r.Payload = payload
		}
		change, err := op.Recur(ctx, r)
		if err != nil {
			return err
		}
		defer cli.WarnNoBridge(ctx, a, op)
		did := "unchanged"
		if change.Added {
			did = "added"
		} else if change.Changed {
			did = "changed"
		}
		return printRecurrence(ctx, a, op, r.Queue, r.Name, did, change.TakenBack)
	})
}
