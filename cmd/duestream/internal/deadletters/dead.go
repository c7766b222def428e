// Package deadletters has the commands about dead letters.
package deadletters

import (
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Dead returns the command dead.
func Dead(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "dead", Short: "List, show, redrive, edit and purge dead letters",
		Long: `A dead letter is a message that was given up: it used up its attempts, its handler gave
it up at once, its workers abandoned it, it expired, or it was malformed. Each keeps its
payload, headers, group, reason and last error, until it is redriven or purged.`,
		Example: `  duestream dead list emails --group mailer --newer-than 1h
  duestream dead show emails 1767000000000-0
  duestream dead redrive emails --reason max_attempts --rate 50/s
  duestream dead purge emails --older-than 30d --dry-run`,
	}, deadList(a), deadShow(a), deadRedrive(a), deadEdit(a), deadPurge(a))
}
