package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
)

func (a *app) functionsDelete() *cobra.Command {
	var force bool
	var agreed *consent
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the functions from the server, or from every master of a cluster",
		Long: `Deletes the functions from the server, or from every master of a cluster. Clients that call
them get an error from then on; nothing else changes, and no message is touched. It asks on
a terminal; elsewhere it needs --yes.`,
		Example: "  duestream functions delete\n  duestream functions delete --yes",
		Args:    cobra.NoArgs,
		RunE: a.do(func(ctx context.Context, _ []string) error {
			if err := agreed.possible(a, "the functions from every server"); err != nil {
				return err
			}
			if err := agreed.ask(ctx, a, "Delete the functions from every server? Clients that call them will fail."); err != nil {
				return err
			}
			return a.onServers(ctx, func(op *admin.Admin) ([]admin.Library, error) {
				return op.DeleteFunctions(ctx, version, force)
			}, func(l admin.Library) string {
				if l.Did == "" {
					return "not there"
				}
				return l.Did + "  " + libraryVersion(l.Release, l.Source)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also delete a library that is not ours")
	agreed = destroys(cmd)
	a.jsonFlag(cmd)
	return cmd
}
