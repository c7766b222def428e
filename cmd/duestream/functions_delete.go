package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
)

func (a *app) functionsDelete() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the functions from the server, or from every master of a cluster",
		Long: `Deletes the functions from the server, or from every master of a cluster. Clients that call
them get an error from then on; nothing else changes, and no message is touched. It asks on
a terminal; elsewhere it needs --yes.`,
		Example: "  duestream functions delete\n  duestream functions delete --yes",
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete a library that is not ours")
	agreed := destroys(cmd)
	a.jsonFlag(cmd)
	return a.does(cmd, func([]string) error {
		return agreed.possible(a, "the functions from every server")
	}, func(ctx context.Context, _ []string) error {
		if err := agreed.ask(ctx, a, "Delete the functions from every server? Clients that call them will fail."); err != nil {
			return err
		}
		return a.operate(ctx, func(op *admin.Admin) error {
			rows, err := op.DeleteFunctions(ctx, a.version, force)
			return a.changed(rows, err, func(l admin.Library) string {
				if l.Did == "" {
					return "not there"
				}
				return l.Did + "  " + libraryVersion(l.Release, l.Source)
			})
		})
	})
}
