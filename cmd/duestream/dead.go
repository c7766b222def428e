package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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

// letterFilter holds the flags that select dead letters.
type letterFilter struct {
	group, reason, err, id string
	older, newer           delay
	limit                  int
}

func (f *letterFilter) flags(cmd *cobra.Command, limit int) {
	f.older.field, f.newer.field = "older-than", "newer-than"
	fs := cmd.Flags()
	fs.StringVarP(&f.group, "group", "g", "", "of this group")
	fs.StringVar(&f.reason, "reason", "", "with this reason: "+strings.Join(deadReasons, ", "))
	fs.StringVar(&f.err, "error", "", "with this text in the error")
	fs.StringVar(&f.id, "id", "", "of the message with this ID; * stands for any text, ? for one character")
	fs.Var(&f.older, "older-than", "dead for at least so long")
	fs.Var(&f.newer, "newer-than", "dead for at most so long")
	fs.IntVar(&f.limit, "limit", limit, "at most so many; 0 = all")
}

// filter returns the filter, and whether it selects less than everything.
func (f *letterFilter) filter() (admin.LetterFilter, bool) {
	all := admin.LetterFilter{
		Group: f.group, Reason: f.reason, ErrorText: f.err, ID: f.id, OlderThan: f.older.d, NewerThan: f.newer.d, Limit: f.limit,
	}
	return all, all != admin.LetterFilter{}
}

// check refuses what can be refused without Redis.
func (f *letterFilter) check() error {
	if f.limit < 0 {
		return invalidf("limit %d: must not be negative", f.limit)
	}
	if f.reason != "" && !slices.Contains(deadReasons, f.reason) {
		return invalidf("reason %q: must be one of %s", oneLine(f.reason, 60), strings.Join(deadReasons, ", "))
	}
	return checkGroup(f.group)
}

// letters returns the dead letters of a queue, and what closes the connection.
func (a *app) letters(ctx context.Context, queue string) (*admin.DeadLetters, func(), error) {
	r, err := a.connectTo(ctx, queue)
	if err != nil {
		return nil, nil, err
	}
	return admin.New(r, a.prefix).DeadLetters(), r.Close, nil
}

func (a *app) deadList() *cobra.Command {
	var f letterFilter
	var summary bool
	cmd := &cobra.Command{
		Use:   "list <queue>",
		Short: "List dead letters, newest first",
		Long: `Lists dead letters, newest first, and says when --limit leaves some out. With --json
prints one object per line, as ` + "`dead show --json`" + ` does.

--summary counts all letters that the other flags select, by group, reason and error:
of an error its first line, with each number as #.`,
		Example: `  duestream dead list emails --group mailer --newer-than 1h
  duestream dead list emails --summary`,
		Args: cobra.ExactArgs(1),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if err := errors.Join(admin.CheckQueue(args[0]), f.check()); err != nil {
				return err
			}
			letters, done, err := a.letters(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			filter, _ := f.filter()
			if summary {
				return a.summarizeLetters(ctx, letters, args[0], filter)
			}
			return a.listLetters(ctx, letters, args[0], filter)
		}),
	}
	f.flags(cmd, 100)
	cmd.Flags().BoolVar(&summary, "summary", false, "count them by group, reason and error; --limit is for the lines of that")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) listLetters(ctx context.Context, letters *admin.DeadLetters, queue string, filter admin.LetterFilter) error {
	now := time.Now()
	rows := [][]string{{"LETTER", "ID", "GROUP", "REASON", "ATTEMPT", "DEAD", "ERROR"}}
	limit, n := filter.Limit, 0
	if filter.Newest = true; limit > 0 && limit < math.MaxInt {
		filter.Limit++ // to see whether there are more
	}
	for l, err := range letters.List(ctx, queue, filter) {
		if err != nil {
			return err
		}
		if n++; limit > 0 && n > limit {
			break
		}
		if a.json {
			if err := a.printLine(l); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			l.Letter, oneLine(l.ID, 40), orDash(oneLine(l.Group, 30)), oneLine(l.Reason, 30), strconv.Itoa(l.Attempt), relative(l.Dead, now), oneLine(l.Error, 60),
		})
	}
	switch {
	case a.json:
	case n == 0:
		fmt.Fprintln(a.out, "no dead letters")
	default:
		table(a.out, rows)
	}
	if limit == 0 || n <= limit {
		return nil
	}
	more := "more"
	if filter == (admin.LetterFilter{Limit: limit + 1, Newest: true}) { // how many is asked of Redis, not read
		total, err := letters.Count(ctx, queue, admin.LetterFilter{})
		if err != nil {
			return err
		}
		more = thousands(int64(max(1, total-limit))) + " more"
	}
	a.note("there are %s: --limit 0 lists all, --summary counts them", more)
	return nil
}

func (a *app) summarizeLetters(ctx context.Context, letters *admin.DeadLetters, queue string, filter admin.LetterFilter) error {
	limit := filter.Limit
	filter.Limit = 0
	all, err := letters.Summarize(ctx, queue, filter)
	if err != nil {
		return err
	}
	total, shown := 0, len(all)
	for _, g := range all {
		total += g.Count
	}
	if limit > 0 {
		shown = min(shown, limit)
	}
	now := time.Now()
	rows := [][]string{{"COUNT", "GROUP", "REASON", "OLDEST", "NEWEST", "ERROR"}}
	for _, g := range all[:shown] {
		if a.json {
			if err := a.printLine(g); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{thousands(int64(g.Count)), orDash(oneLine(g.Group, 30)), oneLine(g.Reason, 30), ago(g.Oldest, now), ago(g.Newest, now), oneLine(g.Error, 80)})
	}
	switch {
	case a.json:
	case total == 0:
		fmt.Fprintln(a.out, "no dead letters")
	default:
		table(a.out, rows)
		fmt.Fprintf(a.out, "%s letters\n", thousands(int64(total)))
	}
	if shown < len(all) {
		a.note("%s: --limit 0 shows all", counted(len(all)-shown, "more line"))
	}
	return nil
}

// ago is relative for a time that may be unknown.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return relative(t, now)
}

func (a *app) deadShow() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show <queue> <letter>", Short: "Show a dead letter, with its payload", Args: cobra.ExactArgs(2),
		Example: "  duestream dead show emails 1767000000000-0",
		RunE: a.do(func(ctx context.Context, args []string) error {
			if err := errors.Join(admin.CheckQueue(args[0]), checkLetters(args[1:])); err != nil {
				return err
			}
			letters, done, err := a.letters(ctx, args[0])
			if err != nil {
				return err
			}
			defer done()
			l, err := letters.Show(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			if raw {
				return a.printRaw(l.Payload)
			}
			return a.print(l, func() { a.describeLetter(l) })
		}),
	}
	a.jsonFlag(cmd)
	rawFlag(cmd, &raw)
	return cmd
}

func (a *app) describeLetter(l admin.Letter) {
	now := time.Now()
	rows := [][]string{
		{"letter", l.Letter}, {"id", oneLine(l.ID, 256)}, {"group", orDash(oneLine(l.Group, 256))}, {"reason", oneLine(l.Reason, 60)},
		{"attempt", strconv.Itoa(l.Attempt)}, {"entry", orDash(l.Entry)},
	}
	rows = append(rows, timeRows(now, "dead", l.Dead, "due", l.Due, "expired", l.Expires)...)
	table(a.out, append(append(rows, mapRows("header ", l.Headers)...), mapRows("field ", l.Extra)...))
	if l.Error != "" {
		fmt.Fprintf(a.out, "\nerror:\n%s\n", printable([]byte(l.Error)))
	}
	a.describePayload(l.Payload)
}
