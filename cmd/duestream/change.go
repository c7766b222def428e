package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
)

func (a *app) cancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel <queue> <id>...",
		Short: "Take messages out of the schedule",
		Long: `Takes messages out of the schedule: those that are reported as cancelled will never be
delivered. One that is not scheduled any more is reported, too: exit code 3 when that is
true of all of them, 6 when of some.`,
		Example: "  duestream cancel emails order-42 order-43",
		Args:    cobra.MinimumNArgs(2),
		RunE:    a.do(func(ctx context.Context, args []string) error { return a.runCancel(ctx, args[0], args[1:]) }),
	}
	a.jsonFlag(cmd)
	a.durabilityFlag(cmd)
	return cmd
}

type cancelled struct {
	ID        string `json:"id"`
	Cancelled bool   `json:"cancelled"`
}

func (a *app) runCancel(ctx context.Context, queue string, ids []string) error {
	if err := checkTarget(queue, ids...); err != nil {
		return err
	}
	client, done, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer done()
	answers := make([]cancelled, 0, len(ids))
	missing := 0
	var late error // cancelled, but not as durable as asked
	for _, id := range ids {
		switch err = client.Cancel(ctx, queue, id); {
		case errors.Is(err, bridge.ErrNotScheduled):
			missing++
		case errors.Is(err, bridge.ErrNotDurable):
			late = err
		case err != nil:
			return errors.Join(a.printCancelled(answers), err)
		}
		answers = append(answers, cancelled{id, !errors.Is(err, bridge.ErrNotScheduled)})
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
	return fmt.Errorf("%w: %d of %d messages were not scheduled", errPartly, missing, len(ids))
}

func (a *app) printCancelled(answers []cancelled) error {
	return a.print(answers, func() {
		for _, c := range answers {
			state := "cancelled"
			if !c.Cancelled {
				state = "not scheduled"
			}
			fmt.Fprintf(a.out, "%s  %s\n", c.ID, state)
		}
	})
}

func (a *app) reschedule() *cobra.Command {
	var w when
	cmd := &cobra.Command{
		Use:   "reschedule <queue> <id> (--in <duration> | --at <time>)",
		Short: "Move a scheduled message to another time",
		Long: `Moves a message that is still scheduled: it will not be delivered at the old time.
When it is not scheduled any more, nothing is changed, and the exit code is 3.`,
		Example: `  duestream reschedule emails order-42 --in 2h
  duestream reschedule emails order-42 --at 2026-12-24T18:00:00Z`,
		Args: cobra.ExactArgs(2),
		RunE: a.do(func(ctx context.Context, args []string) error {
			return a.runReschedule(ctx, args[0], args[1], w.option())
		}),
	}
	a.jsonFlag(cmd)
	a.durabilityFlag(cmd)
	w.flags(cmd, "deliver")
	cmd.MarkFlagsOneRequired("in", "at")
	return cmd
}

func (a *app) runReschedule(ctx context.Context, queue, id string, to bridge.Option) error {
	if err := checkTarget(queue, id); err != nil {
		return err
	}
	client, done, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer done()
	due, err := client.Reschedule(ctx, queue, id, to)
	if err != nil && !errors.Is(err, bridge.ErrNotDurable) {
		return err
	}
	return errors.Join(err, a.print(newScheduledAt(id, due), func() { fmt.Fprintf(a.out, "%s  due %s\n", id, clock(due, time.Now())) }))
}

// checkTarget checks the names of a queue and of messages.
func checkTarget(queue string, ids ...string) error {
	errs := []error{bridge.CheckQueue(queue)}
	for _, id := range ids {
		errs = append(errs, bridge.CheckID(id))
	}
	return errors.Join(errs...)
}
