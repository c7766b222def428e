package messages

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
)

func actCancel(a *cli.App) *cobra.Command {
	var o actFlags
	cmd := &cobra.Command{
		Use:   "cancel [<queue>...]",
		Short: "Cancel messages that are scheduled, retrying, ready or pending",
		Long: `Cancels messages in every state except dead. With --state scheduled,retrying it leaves
alone what is ready or running. A worker that holds a cancelled message is told, and the
message ends when the worker releases it. Without --group, a ready message is cancelled
for all groups. With --group it is refused (exit code 6) while another group needs it.

The command prints the number of messages and asks first. Without a terminal it needs
--yes. Try --dry-run first.`,
		Example: `  duestream act cancel --header tenant=acme --dry-run
  duestream act cancel orders --text '"order":4711' --state scheduled,retrying --yes`,
	}
	o.flags(cmd, admin.ActCancel)
	a.OldBridgesFlag(cmd)
	action := func() admin.Action { return admin.Action{Kind: admin.ActCancel} }
	return actCommand(a, cmd, &o, action, "cancelled", "Cancel %s for good?")
}

func actReschedule(a *cli.App) *cobra.Command {
	var o actFlags
	var w flags.When
	what := admin.Action{Kind: admin.ActReschedule}
	cmd := &cobra.Command{
		Use:   "reschedule [<queue>...] (--in <duration> | --at <time>)",
		Short: "Move scheduled messages and retries to another time",
		Long: `Moves scheduled messages and waiting retries to one due time. With --spread, they become
due evenly over a period of that length, which starts at the due time.

--in counts from now, once for all messages. The command prints the resulting due time.
To continue a run that ended early, repeat the command with the printed time in --at. A
message that already has its due time is counted as unchanged.`,
		Example: `  duestream act reschedule --header tenant=acme --in 24h
  duestream act reschedule orders --error timeout --state retrying --in 0s --rate 50/s`,
	}
	o.flags(cmd, admin.ActReschedule)
	w.Flags(cmd)
	flags.DelayVar(cmd.Flags(), &what.Spread, "spread",
		"delay each message by a further 0 to this; a hash of its ID decides by how much")
	cmd.MarkFlagsOneRequired("in", "at")
	action := func() admin.Action {
		what.Delay, what.At = w.In, w.At
		return what
	}
	return actCommand(a, cmd, &o, action, "moved", "")
}

func actExpire(a *cli.App) *cobra.Command {
	var o actFlags
	cmd := &cobra.Command{
		Use:   "expire [<queue>...]",
		Short: "Make dead letters of scheduled messages and retries",
		Long: `Expires scheduled messages and waiting retries now. They are not delivered. Bridges turn
them into dead letters with the reason expired, at once or when the queue is resumed.`,
		Example: `  duestream act expire --due-until 2026-01-01T00:00:00Z --dry-run
  duestream act expire emails --text campaign-7 --rate 1000/s`,
	}
	o.flags(cmd, admin.ActExpire)
	action := func() admin.Action { return admin.Action{Kind: admin.ActExpire} }
	return actCommand(a, cmd, &o, action, "expired", "")
}

func actRedrive(a *cli.App) *cobra.Command {
	var o actFlags
	what := admin.Action{Kind: admin.ActRedrive}
	cmd := &cobra.Command{
		Use:   "redrive [<queue>...]",
		Short: "Schedule dead letters again",
		Long: `Schedules dead letters again, each for the group it failed in, from attempt 1 and without
its old expiry. A letter without a payload, with unreadable headers, or of a group that
no longer exists is refused, and stays as it is (exit code 6): "duestream dead redrive"
has flags for such letters.`,
		Example: `  duestream act redrive --error 'connection refused' --spread 10m
  duestream act redrive orders --reason max_attempts --rate 50/s --dry-run`,
	}
	o.flags(cmd, admin.ActRedrive)
	f := cmd.Flags()
	f.StringVar(&what.To, "to", "", "for this group instead of the group in which each letter failed")
	flags.DelayVar(f, &what.Delay, "in", "deliver this time after the redrive")
	flags.DelayVar(f, &what.Spread, "spread", "delay each letter by a further 0 to this")
	return actCommand(a, cmd, &o, func() admin.Action { return what }, "redriven", "")
}

func actPurge(a *cli.App) *cobra.Command {
	var o actFlags
	cmd := &cobra.Command{
		Use:   "purge [<queue>...]",
		Short: "Delete dead letters for good",
		Long: `Deletes dead letters for good. The command prints their number and asks first. Without a
terminal it needs --yes. Try --dry-run first.`,
		Example: `  duestream act purge --text '"customer":4711' --dry-run
  duestream act purge orders --error 'no such order' --yes`,
	}
	o.flags(cmd, admin.ActPurge)
	action := func() admin.Action { return admin.Action{Kind: admin.ActPurge} }
	return actCommand(a, cmd, &o, action, "purged", "Delete %s for good?")
}
