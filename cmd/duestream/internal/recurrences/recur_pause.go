package recurrences

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

func recurPause(a *cli.App) *cobra.Command {
	return pauseOrResumeRecurrence(a, true, &cobra.Command{
		Use:   "pause <queue> <name>",
		Short: "Pause a recurrence",
		Long: `Pauses a recurrence. Its planned messages are taken back. No messages are planned until the
recurrence is resumed.`,
		Example: "  duestream recur pause reports nightly",
	})
}

func recurResume(a *cli.App) *cobra.Command {
	return pauseOrResumeRecurrence(a, false, &cobra.Command{
		Use:     "resume <queue> <name>",
		Short:   "Resume a paused recurrence",
		Long:    "Resumes a paused recurrence from now on. The occurrences during the pause are skipped.",
		Example: "  duestream recur resume reports nightly",
	})
}

func pauseOrResumeRecurrence(a *cli.App, paused bool, cmd *cobra.Command) *cobra.Command {
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		changed, err := op.PauseRecurrence(ctx, args[0], args[1], paused)
		if err != nil {
			return err
		}
		did := "resumed"
		switch {
		case paused && changed:
			did = "paused"
		case paused:
			did = "was paused already"
		case !changed:
			did = "was not paused"
		}
		return printRecurrence(ctx, a, op, args[0], args[1], did, 0)
	})
}

func recurRun(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run <queue> <name>",
		Short: "Schedule a message of a recurrence for now",
		Long: `Schedules a message of a recurrence for now, in addition to its planned messages. The
recurrence may be paused. The message has the ID <name>@<Unix ms>-run. With --overlap
skip, occurrences are also left out while this message is unfinished.`,
		Example: "  duestream recur run reports nightly",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		receipt, err := op.RunRecurrence(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		defer cli.WarnNoBridge(ctx, a, op)
		return a.Print(output.NewScheduledAt(receipt.ID, receipt.Due), func() {
			fmt.Fprintf(a.Out, "%s  scheduled for now\n", receipt.ID)
		})
	})
}

func recurRm(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm <queue> <name>",
		Short: "Remove a recurrence",
		Long: `Removes a recurrence, and takes back its planned messages. Messages that recur run
scheduled stay.`,
		Example: "  duestream recur rm reports nightly",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		takenBack, err := op.RemoveRecurrence(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		value := struct {
			Queue     string `json:"queue"`
			Name      string `json:"name"`
			Did       string `json:"did"`
			TakenBack int    `json:"taken_back"`
		}{args[0], args[1], "removed", takenBack}
		return a.Print(value, func() {
			fmt.Fprintf(a.Out, "%s  removed, %s taken back\n", args[1], human.Counted(takenBack, "planned message"))
		})
	})
}
