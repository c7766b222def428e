package functions

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

func functionsLoad(a *cli.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Load the functions on the server, or on every master of a cluster",
		Long: `Loads the functions on the server, or on every master of a cluster. Redis saves the
functions with its data and replicates them. Load them again after an upgrade of
duestream, and when a master has joined the cluster. A server that has the current
functions is left as it is. Older functions are replaced in one step, so clients may
go on calling them. If any server has a library named duestream that another program made, or that
is of a newer release, nothing is changed on any server.`,
		Example: "  duestream functions load\n  duestream functions load --json",
	}
	cmd.Flags().BoolVar(&force, "force", false, "also replace a library that is newer, or that another program made")
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, _ []string) error {
		rows, err := op.LoadFunctions(ctx, a.Version, force)
		return printChanges(a, rows, err, func(l admin.Library) string {
			ours := libraryVersion(a.Version, admin.FunctionsSource())
			switch l.Did {
			case "":
				return "already there  " + libraryVersion(l.Release, l.Source)
			case "replaced":
				return "replaced  " + libraryVersion(l.Release, l.Source) + " → " + ours
			}
			return l.Did + "  " + ours
		})
	})
}
