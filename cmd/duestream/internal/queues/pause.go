package queues

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
)

// Pause returns the command pause.
func Pause(a *cli.App) *cobra.Command {
	return pauseOrResume(a, true, &cobra.Command{
		Use:   "pause <queue>...",
		Short: "Pause queues: scheduled messages wait",
		Long: `Pauses queues. Scheduled messages and retries wait, also past their due time, until the
queue is resumed. Ready messages are still delivered. With --workers, the workers of all
groups take no new message after a second or two, and finish the messages that they hold.
Messages can still be scheduled, moved and cancelled. A pause is the same as
` + "`duestream queue set <queue> held=true`" + `, and may be repeated.`,
		Example: "  duestream pause emails\n  duestream pause emails --workers\n  duestream pause --all\n" +
			"  duestream pause imports --create",
	})
}

// heldQueue is the result of pause and resume for a queue, as JSON.
type heldQueue struct {
	Queue   string `json:"queue"`
	Held    bool   `json:"held"`
	Workers bool   `json:"workers,omitempty"` // the workers are paused as well
	Changed bool   `json:"changed"`
	Known   bool   `json:"known"` // always true: an unknown queue is refused
}

func pauseOrResume(a *cli.App, held bool, cmd *cobra.Command) *cobra.Command {
	var all, workers bool
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case all && len(args) > 0:
			return errors.New("name queues, or give --all, not both")
		case !all && len(args) == 0:
			return errors.New("name a queue, or give --all")
		}
		return nil
	}
	cmd.Flags().BoolVar(&all, "all", false, "all queues that the bridges know")
	if held {
		cmd.Flags().BoolVar(&workers, "workers", false, "workers take no new messages either")
	}
	withQueues := a.WithKnownQueues
	if held {
		withQueues = a.WithQueues // which has --create
	}
	return withQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, queues []string) error {
		if all {
			var err error
			if queues, err = op.Queues(ctx); err != nil {
				return err
			}
		}
		answers := []heldQueue{}
		for _, queue := range queues {
			changed, err := pauseQueue(ctx, op, queue, held, workers)
			if err != nil && len(answers) > 0 {
				return errors.Join(printHeld(a, answers), err)
			}
			if err != nil {
				return err
			}
			answers = append(answers, heldQueue{queue, held, workers, changed, true})
		}
		return printHeld(a, answers)
	})
}

func pauseQueue(ctx context.Context, op *admin.Admin, queue string, held, workers bool) (changed bool, err error) {
	if workers {
		return op.PauseWorkers(ctx, queue)
	}
	return op.Pause(ctx, queue, held)
}

func printHeld(a *cli.App, answers []heldQueue) error {
	return a.Print(answers, func() {
		if len(answers) == 0 {
			fmt.Fprintln(a.Out, "no queues")
		}
		for _, q := range answers {
			switch {
			case q.Workers && q.Changed:
				fmt.Fprintf(a.Out, "%s  paused, with its workers: they finish their messages, and take no new ones\n",
					q.Queue)
			case q.Held && q.Changed:
				fmt.Fprintf(a.Out, "%s  paused: scheduled messages wait; ready messages are still delivered\n", q.Queue)
			case q.Held:
				fmt.Fprintf(a.Out, "%s  was paused already\n", q.Queue)
			case q.Changed:
				fmt.Fprintf(a.Out, "%s  resumed: overdue messages become ready now\n", q.Queue)
			default:
				fmt.Fprintf(a.Out, "%s  was not paused\n", q.Queue)
			}
		}
	})
}
