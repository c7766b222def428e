package recurrences

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

func recurAdd(a *cli.App) *cobra.Command {
	var r bridge.Recurrence
	var headers flags.Headers
	var missed, overlap string
	cmd := &cobra.Command{
		Use:   "add <queue> <name> [payload | -]",
		Short: "Add or change a recurrence",
		Long: `Adds a recurrence to a queue, or changes the recurrence of that name. A change takes
back the planned messages that are not due yet. Without an argument the payload is
empty; "-" is standard input. Either --cron or --every must be given.

A cron expression has five fields (minute, hour, day of the month, month, day of the week),
or six with seconds in front; @hourly, @daily, @weekly, @monthly and @yearly are known, too.
At a clock change, a time of day that does not exist is moved to the end of the gap, and
a time of day that comes twice counts only the first time. With * in the hour field,
the repeated hour counts both times. --every counts from 1970, so its times stay the same after a
change of the recurrence.

An occurrence that no bridge planned in time is missed. --missed once makes up for the
last missed occurrence, --missed skip for none, and --missed all for the last hundred.`,
		Example: `  duestream recur add reports nightly --cron @daily --zone Europe/Paris '{"to":"all"}'
  duestream recur add probes ping --every 90s --overlap skip
  duestream recur add sales tick --every 1m --start 2027-01-02T09:00:00+01:00 --count 60`,
		Args: cli.NumberOfArgs(2, 3),
	}
	a.OldBridgesFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&r.Cron, "cron", "", "cron expression: '0 9 * * 1-5', '@daily'")
	f.StringVar(&r.Zone, "zone", "", "time zone of --cron, like Europe/Paris; default UTC")
	flags.DelayVar(f, &r.Every, "every", "interval between occurrences: 1s or more")
	flags.DelayVar(f, &r.Phase, "phase", "shift the times of --every by this")
	flags.InstantVar(f, &r.Start, "start", "no occurrence before this time: RFC 3339")
	flags.InstantVar(f, &r.End, "end", "no occurrence after this time: RFC 3339")
	f.IntVar(&r.Count, "count", 0, "at most this many occurrences; 0 = no limit")
	flags.DelayVar(f, &r.Jitter, "jitter", "delay each occurrence by a time between 0 and this (at most 24h)")
	f.StringVar(&missed, "missed", "",
		"missed occurrences to make up for: once (default: the last), skip (none), all (the last 100)")
	f.StringVar(&overlap, "overlap", "",
		"if a group has not finished the previous message: allow the occurrence (default), or skip it")
	f.BoolVar(&r.Paused, "paused", false, "plan no message until the recurrence is resumed")
	f.StringVar(&r.Owner, "owner", "", "label of the recurrence's owner: see recur apply")
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
		did := output.Change(change.Added, change.Changed)
		return printRecurrence(ctx, a, op, r.Queue, r.Name, did, change.TakenBack)
	})
}
