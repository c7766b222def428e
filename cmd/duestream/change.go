package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
)

// reach is which of what waits under an ID is meant.
type reach struct {
	retries bool
	group   string
}

func (o *reach) flags(cmd *cobra.Command, a *app) {
	cmd.Flags().BoolVar(&o.retries, "retries", false, "the message, and also its retries that wait, of all groups")
	cmd.Flags().StringVar(&o.group, "group", "", "only the retries that wait for this group")
	cmd.MarkFlagsMutuallyExclusive("retries", "group")
}

// within calls do with what is meant. Without a flag that is the scheduled message, and only when there is none its retries, because they have to
// be looked for in all of the schedule.
func (o *reach) within(taken *[]bridge.Retry, do func(...bridge.Scope) error) error {
	switch {
	case o.group != "":
		return do(bridge.RetriesOf(o.group).Into(taken))
	case o.retries:
		return do(bridge.Retries().Into(taken))
	}
	err := do()
	if errors.Is(err, bridge.ErrNotScheduled) {
		err = do(bridge.Retries().Into(taken))
	}
	return err
}

// takenRetry is a retry in JSON.
type takenRetry struct {
	Group string    `json:"group"` // empty: it was redriven for all groups
	Due   time.Time `json:"due"`
}

func takenRetries(taken []bridge.Retry) (out []takenRetry) {
	for _, r := range taken {
		out = append(out, takenRetry{r.Group, r.Due})
	}
	return out
}

// whose is "retry for mailer"; "redriven message", which is for all groups.
func (r takenRetry) whose() string {
	if r.Group == "" {
		return "redriven message"
	}
	return "retry for " + oneLine(r.Group, 60)
}

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
		Args: cobra.MinimumNArgs(2),
		RunE: a.do(func(ctx context.Context, args []string) error { return a.runCancel(ctx, o, args[0], args[1:]) }),
	}
	o.flags(cmd, a)
	a.jsonFlag(cmd)
	a.durabilityFlag(cmd)
	return cmd
}

type cancelled struct {
	ID        string       `json:"id"`
	Cancelled bool         `json:"cancelled"`
	Retries   []takenRetry `json:"retries,omitempty"` // those that were cancelled
}

func (a *app) runCancel(ctx context.Context, o reach, queue string, ids []string) error {
	if err := errors.Join(checkTarget(queue, ids...), o.check()); err != nil {
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
		var taken []bridge.Retry
		switch err = o.within(&taken, func(s ...bridge.Scope) error { return client.Cancel(ctx, queue, id, s...) }); {
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
	return fmt.Errorf("%w: not scheduled: %d of %s", errPartly, missing, counted(len(ids), "message"))
}

func (a *app) printCancelled(answers []cancelled) error {
	return a.print(answers, func() {
		for _, c := range answers {
			state := "cancelled"
			if !c.Cancelled {
				state = "not scheduled"
			}
			for i, r := range c.Retries {
				state += []string{", ", ": "}[max(0, 1-i)] + r.whose() + " that was due " + clock(r.Due, time.Now())
			}
			fmt.Fprintf(a.out, "%s  %s\n", c.ID, state)
		}
	})
}

func (a *app) reschedule() *cobra.Command {
	var w when
	var o reach
	cmd := &cobra.Command{
		Use:   "reschedule <queue> <id> (--in <duration> | --at <time>)",
		Short: "Move a scheduled message, or its retries, to another time",
		Long: `Moves a message that is still scheduled: it will not be delivered at the old time. When
it is not scheduled any more, but waits to be tried again, its retries are moved, of all
groups: --in 0s has them tried now. With --retries both are, with --group only the
retries of one group. When nothing waits, nothing is changed, and the exit code is 3.`,
		Example: `  duestream reschedule emails order-42 --in 2h
  duestream reschedule emails order-42 --at 2026-12-24T18:00:00Z
  duestream reschedule callbacks order-42 --in 0s --group partner-a`,
		Args: cobra.ExactArgs(2),
		RunE: a.do(func(ctx context.Context, args []string) error {
			return a.runReschedule(ctx, o, args[0], args[1], w.option())
		}),
	}
	o.flags(cmd, a)
	a.jsonFlag(cmd)
	a.durabilityFlag(cmd)
	w.flags(cmd, "deliver")
	cmd.MarkFlagsOneRequired("in", "at")
	return cmd
}

func (a *app) runReschedule(ctx context.Context, o reach, queue, id string, to bridge.Option) error {
	if err := errors.Join(checkTarget(queue, id), o.check()); err != nil {
		return err
	}
	client, done, err := a.client(ctx)
	if err != nil {
		return err
	}
	defer done()
	var due time.Time
	var taken []bridge.Retry
	err = o.within(&taken, func(s ...bridge.Scope) (err error) {
		due, err = client.Reschedule(ctx, queue, id, to, s...)
		return err
	})
	if err != nil && !errors.Is(err, bridge.ErrNotDurable) {
		return err
	}
	value := struct {
		scheduledAt
		Retries []takenRetry `json:"retries,omitempty"` // those that were moved
	}{newScheduledAt(id, due), takenRetries(taken)}
	return errors.Join(err, a.print(value, func() {
		what := ""
		for i, r := range value.Retries {
			what += []string{", ", "  "}[max(0, 1-i)] + r.whose()
		}
		fmt.Fprintf(a.out, "%s  due %s%s\n", id, clock(due, time.Now()), what)
	}))
}

func (o *reach) check() error {
	if o.group == "" {
		return nil
	}
	return admin.CheckGroup(o.group)
}

// checkTarget checks the names of a queue and of messages.
func checkTarget(queue string, ids ...string) error {
	errs := []error{admin.CheckQueue(queue)}
	for _, id := range ids {
		errs = append(errs, admin.CheckID(id))
	}
	return errors.Join(errs...)
}
