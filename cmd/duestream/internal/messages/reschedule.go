package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// Reschedule returns the command reschedule.
func Reschedule(a *cli.App) *cobra.Command {
	var w flags.When
	var o reach
	cmd := &cobra.Command{
		Use:   "reschedule <queue> <id> (--in <duration> | --at <time>)",
		Short: "Move a scheduled message, or its retries, to another time",
		Long: `Moves a message that is still scheduled. The message is not delivered at the old time.
If the message is not scheduled, and its retries wait, the retries of all groups are
moved; with --in 0s they are delivered now. --retries moves the scheduled message and
its retries. --group moves only the retries of one group. If nothing waits, nothing is
changed, and the exit code is 3.`,
		Example: `  duestream reschedule emails order-42 --in 2h
  duestream reschedule emails order-42 --at 2026-12-24T18:00:00Z
  duestream reschedule callbacks order-42 --in 0s --group partner-a`,
	}
	o.flags(cmd)
	w.Flags(cmd)
	cmd.MarkFlagsOneRequired("in", "at")
	return a.WithClient(cmd, o.check, func(ctx context.Context, client *bridge.Client, args []string) error {
		return moveMessage(ctx, a, client, o, args[0], args[1], w.Option())
	})
}

func moveMessage(ctx context.Context, a *cli.App, client *bridge.Client, o reach, queue, id string,
	to bridge.Option) error {
	var due time.Time
	var retries []bridge.Retry
	err := o.call(&retries, func(s ...bridge.Scope) (err error) {
		due, err = client.Reschedule(ctx, queue, id, to, s...)
		return err
	})
	if err != nil && !errors.Is(err, bridge.ErrNotDurable) {
		return err
	}
	value := struct {
		output.ScheduledAt
		Retries []retryAnswer `json:"retries,omitempty"` // the retries that were moved
	}{output.NewScheduledAt(id, due), newRetryAnswers(retries)}
	return errors.Join(err, a.Print(value, func() {
		moved := describeRetries("  ", value.Retries, retryAnswer.describe)
		fmt.Fprintf(a.Out, "%s  due %s%s\n", id, human.Clock(due, a.Now(queue)), moved)
	}))
}
