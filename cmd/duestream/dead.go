package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
)

func (a *app) dead() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead", Short: "List, show, redrive, edit and purge dead letters", Args: cobra.NoArgs, RunE: help,
		Long: `A dead letter is a message that a group could not deal with: it failed as often as it
may, or at once, or was abandoned, expired or malformed. Each keeps its payload,
headers, group, reason and last error, until it is redriven or purged.`,
		Example: `  duestream dead list emails --group mailer --newer-than 1h
  duestream dead show emails 1767000000000-0
  duestream dead redrive emails --reason max_attempts --rate 50/s
  duestream dead purge emails --older-than 30d --dry-run`,
	}
	cmd.AddCommand(a.deadList(), a.deadShow(), a.deadRedrive(), a.deadEdit(), a.deadPurge())
	return cmd
}

// letters returns the dead letters of a queue, and what closes the connection.
func (a *app) letters(ctx context.Context, queue string) (*admin.DeadLetters, func(), error) {
	op, done, err := a.admin(ctx, queue)
	if err != nil {
		return nil, nil, err
	}
	return op.DeadLetters(), done, nil
}
