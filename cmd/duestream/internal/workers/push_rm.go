package workers

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func pushRm(a *cli.App) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "rm <queue>",
		Short: "Remove the target of a group",
		Long: `Removes the target of a group. Posting ends within seconds. The group stays, and keeps
every message for its next worker. If the group will have no worker, destroy it:
redis-cli XGROUP DESTROY 'duestream:{<queue>}:stream' <group>, in each partition.`,
		Example: "  duestream push rm orders --group partner",
	}
	cmd.Flags().StringVarP(&name, "group", "g", "", "consumer group (required)")
	_ = cmd.MarkFlagRequired("group")
	check := func([]string) error { return admin.CheckGroup(name) }
	return a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := op.RemovePushTarget(ctx, args[0], name); err != nil {
			return err
		}
		a.Note("the group %s stays, and keeps messages", human.OneLine(name, 60))
		return printTarget(a, pushChanged{Queue: args[0], Group: name, Did: "removed"})
	})
}
