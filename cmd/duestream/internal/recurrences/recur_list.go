package recurrences

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/internal/written"
)

func recurList(a *cli.App) *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "list [<queue>]",
		Short: "List recurrences, with their next three times",
		Long: `Lists the recurrences of a queue, or of all queues. For each it prints when it recurs, its
next three times in its time zone, and when its last message was due.`,
		Example: "  duestream recur list\n  duestream recur list reports --json",
	}
	cmd.Flags().StringVar(&owner, "owner", "", "only recurrences of this owner")
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		queues, err := cli.QueuesOrAll(ctx, op, args)
		if err != nil {
			return err
		}
		now := a.Now("")
		list := a.List("QUEUE", "NAME", "WHEN", "STATE", "LAST", "NEXT")
		for _, queue := range queues {
			states, err := op.Recurrences(ctx, queue)
			if err != nil {
				return err
			}
			for _, s := range states {
				if owner == "" || s.Spec.Owner == owner {
					list.Add(newRecurrenceAnswer(s), queue, human.OneLine(s.Spec.Name, 40), cli.Rhythm(s.Spec), stateOf(s),
						human.Ago(s.Last, now), nextTimes(s))
				}
			}
		}
		return list.Finish("no recurrences")
	})
}

func recurShow(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show <queue> <name>",
		Short:   "Show a recurrence",
		Long:    "Shows the spec of a recurrence, its next three times and its last message.",
		Example: "  duestream recur show reports nightly",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		s, err := op.Recurrence(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return a.Print(newRecurrenceAnswer(s), func() {
			r, now := s.Spec, a.Now(args[0])
			rows := [][]string{{"queue", r.Queue}, {"name", r.Name}, {"when", cli.Rhythm(r)}}
			addIf := func(condition bool, name, value string) {
				if condition {
					rows = append(rows, []string{name, value})
				}
			}
			addIf(r.Words() != "", "in words", r.Words())
			rows = append(rows, []string{"state", stateOf(s)})
			for _, t := range s.Next {
				rows = append(rows, []string{"next", zoneTime(t) + " (" + human.Relative(t, now) + ")"})
			}
			addIf(!s.Last.IsZero(), "last", zoneTime(s.Last)+" "+human.OneLine(s.LastID, 260))
			addIf(!r.Start.IsZero(), "start", zoneTime(r.Start))
			addIf(!r.End.IsZero(), "end", zoneTime(r.End))
			addIf(r.Count > 0, "count", fmt.Sprintf("%d, %d of them planned", r.Count, s.Used))
			addIf(r.Jitter > 0, "jitter", written.Duration(r.Jitter))
			rows = append(rows, []string{"missed", string(r.Missed)}, []string{"overlap", string(r.Overlap)})
			addIf(r.Owner != "", "owner", human.OneLine(r.Owner, 80))
			payload := admin.Payload(r.Payload)
			if payload == nil {
				payload = admin.Payload{}
			}
			a.Describe(rows, r.Headers, payload)
		})
	})
}
