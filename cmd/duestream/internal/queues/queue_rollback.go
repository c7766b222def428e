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
		Long: `Prepares a queue for bridges of an earlier release that knows no ordering keys. Messages
that wait for their ordering key get back their own due times. From then on, messages of
one key may be delivered side by side. No message is lost. The command deletes only the
records of which message holds which key.

Stop the bridges of this release first, because they would make messages wait again.
While such a bridge is alive the command refuses, unless --force is given. Recurrences
stay as they are, and their next occurrences stay scheduled. Bridges that know no
recurrences plan no further occurrences.`,
		Example: "  duestream queue rollback emails",
	}
	cmd.Flags().BoolVar(&force, "force", false, "go on even if a bridge of this release is alive")
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
				text += fmt.Sprintf("; %s, which bridges that know no recurrences do not plan",
					human.Counted(int(done.Recurrences), "recurrence"))
			}
			fmt.Fprintln(a.Out, text)
		})
	})
}
