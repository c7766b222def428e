package functions

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

func functionsDelete(a *cli.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the functions from the server, or from every master of a cluster",
		Long: `Deletes the functions from the server, or from every master of a cluster. Clients that
call the functions get an error from then on. Nothing else changes, and no message is
touched. The command asks first. Without a terminal it needs --yes.`,
		Example: "  duestream functions delete\n  duestream functions delete --yes",
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete a library that is not ours")
	consent := cli.ConsentFlag(cmd)
	a.JSONFlag(cmd)
	return a.WithRun(cmd, func([]string) error {
		return consent.CheckPossible(a, "the functions from every server")
	}, func(ctx context.Context, _ []string) error {
		const question = "Delete the functions from every server? Clients that call them will fail."
		if err := consent.Ask(ctx, a, question); err != nil {
			return err
		}
		return a.UseAdmin(ctx, func(op *admin.Admin) error {
			rows, err := op.DeleteFunctions(ctx, a.Version, force)
			return printChanges(a, rows, err, func(l admin.Library) string {
				if l.Did == "" {
					return "not there"
				}
				return l.Did + "  " + libraryVersion(l.Release, l.Source)
			})
		})
	})
}
