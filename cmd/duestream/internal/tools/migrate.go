package tools

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Migrate returns the command migrate.
func Migrate(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "migrate", Short: "Move the jobs of another program into queues",
		Long:    "Moves the jobs that another program keeps in its Redis into queues of duestream.",
		Example: "  duestream migrate lmstfy --from redis://old:6379 --dry-run",
	}, migrateLmstfy(a), migrateAsynq(a), migrateDelayqueue(a), migrateBullmq(a))
}
