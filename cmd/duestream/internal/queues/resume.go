package queues

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Resume returns the command resume.
func Resume(a *cli.App) *cobra.Command {
	return pauseOrResume(a, false, &cobra.Command{
		Use:   "resume <queue>...",
		Short: "Resume paused queues",
		Long: `Resumes paused queues. Messages that became due meanwhile are ready at once, oldest first.
May be repeated.`,
		Example: "  duestream resume emails\n  duestream resume --all",
	})
}
