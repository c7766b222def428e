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
		Long: `Removes a queue: its keys in all partitions, with its groups, settings and dedup
windows, and its name in the registry. A queue that holds messages (scheduled, ready,
pending or dead), recurrences or push targets is removed only with --force, after you
confirm.

Stop its producers and workers first: a producer that schedules, or a worker that reads,
creates the queue again. The command names workers that were active within the last
seconds.`,
		Example: "  duestream queue delete emials\n  duestream queue delete old-reports --force --yes",
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete its messages, recurrences and push targets as well")
	consent := cli.ConsentFlag(cmd)
	return a.WithAdmin(cmd, func(args []string) error {
		if !force {
			return nil
		}
		return consent.CheckPossible(a, "the queue "+args[0]+" with everything in it")
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		return deleteQueue(ctx, a, op, args[0], force, consent)
	})
}

func deleteQueue(ctx context.Context, a *cli.App, op *admin.Admin, queue string, force bool,
	consent *cli.Consent) error {
	contents, err := op.DeleteQueue(ctx, queue, false)
	if errors.Is(err, admin.ErrNotEmpty) {
		text := human.OneLine(contents.String(), 1000)
		if !force {
			return fmt.Errorf("%w: %s holds %s", admin.ErrNotEmpty, queue, text)
		}
		if err := consent.Ask(ctx, a, fmt.Sprintf("Delete the queue %s with %s?", queue, text)); err != nil {
			return err
		}
		contents, err = op.DeleteQueue(ctx, queue, true)
	}
	if err != nil {
		return err
	}
	if len(contents.Readers) > 0 && !a.JSON {
		fmt.Fprintf(a.Err, "duestream: these workers still read, and will create the queue again: %s\n",
			human.OneLine(strings.Join(contents.Readers, ", "), 400))
	}
	value := struct {
		Queue   string              `json:"queue"`
		Deleted admin.QueueContents `json:"deleted"`
	}{queue, contents}
	return a.Print(value, func() {
		withContents := ""
		if !contents.Empty() {
			withContents = ", with " + human.OneLine(contents.String(), 1000)
		}
		fmt.Fprintf(a.Out, "%s  deleted%s\n", queue, withContents)
	})
}
