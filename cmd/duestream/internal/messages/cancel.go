package messages

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Cancel returns the command cancel.
func Cancel(a *cli.App) *cobra.Command {
	var o reach
	running := false
	cmd := &cobra.Command{
		Use:   "cancel <queue> <id>...",
		Short: "Take messages out of the schedule",
		Long: `Takes messages out of the schedule. A message that is reported as cancelled will never
be delivered. If a message is not scheduled, and its retries wait, the retries of all
groups are cancelled. --retries cancels the scheduled message and its retries. --group
cancels only the retries of one group. A message that a worker holds is not stopped.

--running also cancels a message that is ready or that a worker holds, for all groups or
for the group of --group. A held message is reported as cancelling: its worker learns of
the cancellation within 5 seconds, and the message ends when the worker releases it.
With --group, a message that waits for its first delivery to that group is reported as
unread, and is not cancelled.

If none of the messages is found, the exit code is 3. If some are not found, it is 6.`,
		Example: `  duestream cancel emails order-42 order-43
  duestream cancel callbacks order-42 --group partner-a
  duestream cancel reports big-one --running`,
	}
	o.flags(cmd)
	cmd.Flags().BoolVar(&running, "running", false,
		"also ready messages, and messages that a worker holds; with --group for one group")
	cmd.MarkFlagsMutuallyExclusive("running", "retries")
	a.OldBridgesFlag(cmd)
	return a.WithClient(cmd, o.check, func(ctx context.Context, client *bridge.Client, args []string) error {
		if running {
			return cancelRunning(ctx, a, client, o.group, args[0], args[1:])
		}
		return cancelMessages(ctx, a, client, o, args[0], args[1:])
	})
}

type cancelled struct {
	ID        string        `json:"id"`
	Cancelled bool          `json:"cancelled"`
	Retries   []retryAnswer `json:"retries,omitempty"` // the retries that were cancelled
}

func cancelMessages(ctx context.Context, a *cli.App, client *bridge.Client, o reach, queue string, ids []string) error {
	answers := make([]cancelled, 0, len(ids))
	missing := 0
	var notDurable error // error of a message that was cancelled, but whose durability was not confirmed
	for _, id := range ids {
		var retries []bridge.Retry
		err := o.call(&retries, func(s ...bridge.Scope) error { return client.Cancel(ctx, queue, id, s...) })
		switch {
		case errors.Is(err, bridge.ErrNotScheduled):
			missing++
		case errors.Is(err, bridge.ErrNotDurable):
			notDurable = err
		case err != nil:
			return errors.Join(printCancelled(a, queue, answers), err)
		}
		answers = append(answers, cancelled{id, !errors.Is(err, bridge.ErrNotScheduled), newRetryAnswers(retries)})
	}
	if printed := printCancelled(a, queue, answers); printed != nil {
		return printed
	}
	switch {
	case notDurable != nil:
		return notDurable
	case missing == 0:
		return nil
	case missing == len(ids):
		return exit.ErrNoneWaits
	}
	return fmt.Errorf("%w: not scheduled: %d of %s", exit.ErrSomeWait, missing, human.Counted(len(ids), "message"))
}

// cancelledRunning is the result for one message of cancel --running, as JSON.
type cancelledRunning struct {
	ID      string               `json:"id"`
	Verdict bridge.CancelVerdict `json:"verdict"`
	Holders []bridge.Holder      `json:"holders,omitempty"` // the workers that learn of the cancellation
	Retries []retryAnswer        `json:"retries,omitempty"` // the retries that were cancelled
}

func cancelRunning(ctx context.Context, a *cli.App, client *bridge.Client, group, queue string, ids []string) error {
	results, err := client.CancelRunning(ctx, queue, group, ids...)
	answers, missing, unread := make([]cancelledRunning, 0, len(results)), 0, 0
	for _, c := range results {
		switch c.Verdict {
		case bridge.VerdictNotFound:
			missing++
			if err != nil { // the search was not completed, so the message may exist
				continue
			}
		case bridge.VerdictUnread:
			unread++
		}
		answers = append(answers, cancelledRunning{c.ID, c.Verdict, c.Holders, newRetryAnswers(c.Retries)})
	}
	printed := a.Print(answers, func() {
		for _, c := range answers {
			text := string(c.Verdict)
			for _, h := range c.Holders {
				text += fmt.Sprintf(", %s of %s", human.OneLine(h.Consumer, 60), human.OneLine(h.Group, 60))
			}
			fmt.Fprintf(a.Out, "%s  %s\n", c.ID, text)
		}
	})
	switch {
	case err != nil || printed != nil:
		return errors.Join(printed, err)
	case missing == len(ids):
		return fmt.Errorf("cancel %s: %w", queue, admin.ErrNotFound)
	case unread > 0:
		return fmt.Errorf("%w: group %s has not read %d of %s yet, and an unread message is for other groups as well",
			exit.Refused(missing+unread < len(ids)), group, unread, human.Counted(len(ids), "message"))
	case missing > 0:
		return fmt.Errorf("%w: not found: %d of %s", exit.ErrPartly, missing, human.Counted(len(ids), "message"))
	}
	return nil
}

func printCancelled(a *cli.App, queue string, answers []cancelled) error {
	return a.Print(answers, func() {
		now := a.Now(queue)
		for _, c := range answers {
			state := "cancelled"
			if !c.Cancelled {
				state = "not scheduled"
			}
			state += describeRetries(": ", c.Retries, func(r retryAnswer) string {
				return r.describe() + " that was due " + human.Clock(r.Due, now)
			})
			fmt.Fprintf(a.Out, "%s  %s\n", c.ID, state)
		}
	})
}
