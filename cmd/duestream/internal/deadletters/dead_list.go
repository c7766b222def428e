package deadletters

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

func deadList(a *cli.App) *cobra.Command {
	var filter admin.LetterFilter
	var summary bool
	cmd := &cobra.Command{
		Use:   "list <queue>",
		Short: "List dead letters, newest first",
		Long: `Lists dead letters, newest first, and says when --limit leaves some out. With --json
prints one object per line, as ` + "`dead show --json`" + ` does.

--summary counts all letters that the other flags select, by group, reason and error. It
shows the first line of an error, with # for IDs, addresses, durations and long numbers.`,
		Example: `  duestream dead list emails --group mailer --newer-than 1h
  duestream dead list emails --summary`,
	}
	filterFlags(cmd, &filter, 100)
	cmd.Flags().BoolVar(&summary, "summary", false,
		"count the letters by group, reason and error; --limit then limits the lines")
	check := func([]string) error { return checkFilter(filter) }
	return a.WithKnownQueues(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if summary {
			return summarizeLetters(ctx, a, op, args[0], filter)
		}
		return listLetters(ctx, a, op, args[0], filter)
	})
}

func listLetters(ctx context.Context, a *cli.App, op *admin.Admin, queue string, filter admin.LetterFilter) error {
	letters := op.DeadLetters()
	now := a.Now(queue)
	list := a.List("LETTER", "ID", "GROUP", "REASON", "ATTEMPT", "DEAD", "ERROR")
	limit, n := filter.Limit, 0
	filter.Newest = true
	if limit > 0 && limit < math.MaxInt {
		filter.Limit++ // one letter more than is shown proves that there are more
	}
	for l, err := range letters.List(ctx, queue, filter) {
		if err = cmp.Or(err, list.Err); err != nil {
			return err
		}
		if n++; limit > 0 && n > limit {
			break
		}
		list.Add(l, l.Letter, human.OneLine(l.ID, 40), human.OrDash(human.OneLine(l.Group, 30)), human.OneLine(l.Reason, 30),
			strconv.Itoa(l.Attempt), human.Ago(l.Dead, now), human.OneLine(l.Error, 60))
	}
	if err := checkFound(ctx, op, queue, filter, n); err != nil {
		return err
	}
	if err := list.Finish("no dead letters"); err != nil || limit == 0 || n <= limit {
		return err
	}
	more := "more"
	if filter == (admin.LetterFilter{Limit: limit + 1, Newest: true}) { // Redis knows the count of all letters
		total, err := letters.Count(ctx, queue, admin.LetterFilter{})
		if err != nil {
			return err
		}
		more = human.Thousands(max(1, total-limit)) + " more"
	}
	a.Note("there are %s: --limit 0 lists all, --summary counts them", more)
	return nil
}

func summarizeLetters(ctx context.Context, a *cli.App, op *admin.Admin, queue string, filter admin.LetterFilter) error {
	limit := filter.Limit
	filter.Limit = 0
	all, err := op.DeadLetters().Summarize(ctx, queue, filter)
	if err = cmp.Or(err, checkFound(ctx, op, queue, filter, len(all))); err != nil {
		return err
	}
	total, shown := 0, len(all)
	for _, g := range all {
		total += g.Count
	}
	if limit > 0 {
		shown = min(shown, limit)
	}
	now := a.Now(queue)
	list := a.List("COUNT", "GROUP", "REASON", "OLDEST", "NEWEST", "ERROR")
	for _, g := range all[:shown] {
		list.Add(g, human.Thousands(g.Count), human.OrDash(human.OneLine(g.Group, 30)), human.OneLine(g.Reason, 30),
			human.Ago(g.Oldest, now), human.Ago(g.Newest, now), human.OneLine(g.Error, 80))
	}
	if err := list.Finish("no dead letters"); err != nil {
		return err
	}
	if total > 0 {
		fmt.Fprintf(a.Text(), "%s letters\n", human.Thousands(total))
	}
	if shown < len(all) {
		a.Note("%s: --limit 0 shows all", human.Counted(len(all)-shown, "more line"))
	}
	return nil
}
