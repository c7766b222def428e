package queues

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func queueDelete(a *cli.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete <queue>",
		Short: "Remove a queue that is not needed any more",
		Long: `Removes a queue: its keys, in all partitions, with its groups, settings and dedup windows,
and its name from the registry. One that holds messages (scheduled, ready, pending or dead),
recurrences or push targets is left alone unless --force is given, and that has to be agreed to.

Bridges forget it. A producer that goes on scheduling into it, and a worker that goes on
reading from it, make it again: stop them first. Workers that were there within the last
seconds are named.`,
		Example: "  duestream queue delete emials\n  duestream queue delete old-reports --force --yes",
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete its messages, recurrences and push targets as well")
	agreed := cli.AskConsent(cmd)
	return a.WithAdmin(cmd, func(args []string) error {
		if !force {
			return nil
		}
		return agreed.Possible(a, "the queue "+args[0]+" with all that it holds")
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		return deleteQueue(ctx, a, op, args[0], force, agreed)
	})
}

func deleteQueue(ctx context.Context, a *cli.App, op *admin.Admin, queue string, force bool,
	agreed *cli.Consent) error {
	had, err := op.DeleteQueue(ctx, queue, false)
	if errors.Is(err, admin.ErrNotEmpty) {
		holds := human.OneLine(had.String(), 1000)
		if !force {
			return fmt.Errorf("%w: %s holds %s", admin.ErrNotEmpty, queue, holds)
		}
		if err := agreed.Ask(ctx, a, fmt.Sprintf("Delete the queue %s with %s?", queue, holds)); err != nil {
			return err
		}
		had, err = op.DeleteQueue(ctx, queue, true)
	}
	if err != nil {
		return err
	}
	if len(had.Readers) > 0 && !a.JSON {
		fmt.Fprintf(a.Err, "duestream: still reading, and will make the queue again: %s\n",
			human.OneLine(strings.Join(had.Readers, ", "), 400))
	}
	value := struct {
		Queue   string              `json:"queue"`
		Deleted admin.QueueContents `json:"deleted"`
	}{queue, had}
	return a.Print(value, func() {
		with := ""
		if !had.Empty() {
			with = ", with " + human.OneLine(had.String(), 1000)
		}
		fmt.Fprintf(a.Out, "%s  deleted%s\n", queue, with)
	})
}
