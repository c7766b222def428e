package queues

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func queueRollback(a *cli.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rollback <queue>",
		Short: "Make a queue ready for bridges of an earlier release",
		Long: `Makes all that is scheduled in a queue servable by bridges of an earlier release that knows
no keys of messages: messages that wait for their key are due when they were to be. From
then on messages of one key may be delivered side by side. Nothing is lost, and nothing is
deleted but the notes of who holds which key.

Stop the bridges of this release first: they would have messages wait again. While one is
alive nothing is done, unless --force is given. Recurrences stay as they are, and their next
occurrences stay scheduled; bridges that know no recurrences plan none behind them.`,
		Example: "  duestream queue rollback emails",
	}
	cmd.Flags().BoolVar(&force, "force", false, "go on although a bridge of this release is alive")
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		queue := args[0]
		if err := op.CheckKnown(ctx, queue); err != nil {
			return err
		}
		done, err := op.RollBackQueue(ctx, queue, force)
		if err != nil {
			return err
		}
		value := struct {
			Queue string `json:"queue"`
			admin.RolledBack
		}{queue, done}
		return a.Print(value, func() {
			text := fmt.Sprintf("%s  %s released", queue, human.Counted(int(done.Released), "message"))
			if done.Recurrences > 0 {
				text += fmt.Sprintf("; %s, which bridges of before recurrences do not plan",
					human.Counted(int(done.Recurrences), "recurrence"))
			}
			fmt.Fprintln(a.Out, text)
		})
	})
}
