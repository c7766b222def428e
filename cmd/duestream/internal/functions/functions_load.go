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
		Long: `Loads the functions on the server, or on every master of a cluster. Redis saves them with
its data and replicates them. Load them again after an upgrade of duestream, and when a
master has joined the cluster. Where they are already, nothing is done; older ones are
replaced, in one step, and calls go on meanwhile. A library called duestream that is not
ours, or is of a newer release, is left alone, and then nothing is changed on any server.`,
		Example: "  duestream functions load\n  duestream functions load --json",
	}
	cmd.Flags().BoolVar(&force, "force", false, "also replace a library that is newer, or not ours")
	return a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, _ []string) error {
		rows, err := op.LoadFunctions(ctx, a.Version, force)
		return changed(a, rows, err, func(l admin.Library) string {
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
