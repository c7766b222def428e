package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func (a *app) cancel() *cobra.Command {
	var o reach
	cmd := &cobra.Command{
		Use:   "cancel <queue> <id>...",
		Short: "Take messages out of the schedule",
		Long: `Takes messages out of the schedule: those that are reported as cancelled will never be
delivered. When a message is not scheduled any more, but waits to be tried again, its
retries are cancelled, of all groups. With --retries both are, with --group only the
retries of one group. What is being worked on is not stopped.

One of which nothing waits is reported, too: exit code 3 when that is true of all of
them, 6 when of some.`,
		Example: `  duestream cancel emails order-42 order-43
  duestream cancel callbacks order-42 --group partner-a`,
	}
	o.flags(cmd)
	return a.writes(cmd, o.check, func(ctx context.Context, client *bridge.Client, args []string) error {
		return a.cancelMessages(ctx, client, o, args[0], args[1:])
	})
}

type cancelled struct {
	ID        string       `json:"id"`
	Cancelled bool         `json:"cancelled"`
	Retries   []takenRetry `json:"retries,omitempty"` // those that were cancelled
}

func (a *app) cancelMessages(ctx context.Context, client *bridge.Client, o reach, queue string, ids []string) error {
	answers := make([]cancelled, 0, len(ids))
	missing := 0
	var late error // cancelled, but not as durable as asked
	for _, id := range ids {
		var taken []bridge.Retry
		err := o.within(&taken, func(s ...bridge.Scope) error { return client.Cancel(ctx, queue, id, s...) })
		switch {
		case errors.Is(err, bridge.ErrNotScheduled):
			missing++
		case errors.Is(err, bridge.ErrNotDurable):
			late = err
		case err != nil:
			return errors.Join(a.printCancelled(answers), err)
		}
		answers = append(answers, cancelled{id, !errors.Is(err, bridge.ErrNotScheduled), takenRetries(taken)})
	}
	if printed := a.printCancelled(answers); printed != nil {
		return printed
	}
	switch {
	case late != nil:
		return late
	case missing == 0:
		return nil
	case missing == len(ids):
		return bridge.ErrNotScheduled
	}
	return fmt.Errorf("%w: not scheduled: %d of %s", errPartly, missing, human.Counted(len(ids), "message"))
}

func (a *app) printCancelled(answers []cancelled) error {
	return a.print(answers, func() {
		for _, c := range answers {
			state := "cancelled"
			if !c.Cancelled {
				state = "not scheduled"
			}
			for i, r := range c.Retries {
				state += []string{", ", ": "}[max(0, 1-i)] + r.whose() + " that was due " + human.Clock(r.Due, time.Now())
			}
			fmt.Fprintf(a.out, "%s  %s\n", c.ID, state)
		}
	})
}
