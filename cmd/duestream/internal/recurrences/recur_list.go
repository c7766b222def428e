package recurrences

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func recurList(a *cli.App) *cobra.Command {
	var owner string
	cmd := &cobra.Command{
		Use:   "list [<queue>]",
		Short: "List recurrences, with their next three times",
		Long: `Lists the recurrences of a queue, or of all queues: when they recur, the next three times
in the zone of each, and when the last message of each was due.`,
		Example: "  duestream recur list\n  duestream recur list reports --json",
	}
	cmd.Flags().StringVar(&owner, "owner", "", "of this owner")
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, queues []string) (err error) {
		if len(queues) == 0 {
			if queues, err = op.Queues(ctx); err != nil {
				return err
			}
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
					list.Add(newRecurring(s), queue, human.OneLine(s.Spec.Name, 40), cli.Rhythm(s.Spec), stateOf(s),
						human.Ago(s.Last, now), nextTimes(s))
				}
			}
		}
		return list.End("no recurrences")
	})
}

func recurShow(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show <queue> <name>",
		Short:   "Show a recurrence",
		Long:    "Shows a recurrence with everything that it says, its next three times and its last message.",
		Example: "  duestream recur show reports nightly",
	}
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		s, err := op.Recurrence(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return a.Print(newRecurring(s), func() {
			r, now := s.Spec, a.Now(args[0])
			rows := [][]string{{"queue", r.Queue}, {"name", r.Name}, {"when", cli.Rhythm(r)}, {"state", stateOf(s)}}
			add := func(name, value string, is bool) {
				if is {
					rows = append(rows, []string{name, value})
				}
			}
			for _, t := range s.Next {
				rows = append(rows, []string{"next", onClocks(t) + " (" + human.Relative(t, now) + ")"})
			}
			add("last", onClocks(s.Last)+" "+human.OneLine(s.LastID, 260), !s.Last.IsZero())
			add("start", onClocks(r.Start), !r.Start.IsZero())
			add("end", onClocks(r.End), !r.End.IsZero())
			add("count", fmt.Sprintf("%d, %d of them planned", r.Count, s.Used), r.Count > 0)
			add("jitter", human.Exact(r.Jitter), r.Jitter > 0)
			rows = append(rows, []string{"missed", string(r.Missed)}, []string{"overlap", string(r.Overlap)})
			add("owner", human.OneLine(r.Owner, 80), r.Owner != "")
			payload := admin.Payload(r.Payload)
			if payload == nil {
				payload = admin.Payload{}
			}
			a.Describe(rows, r.Headers, payload)
		})
	})
}
