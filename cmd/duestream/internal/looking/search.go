package looking

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Search returns the command search.
func Search(a *cli.App) *cobra.Command {
	var s flags.Search
	var limit int
	cmd := &cobra.Command{
		Use:   "search [<queue>...]",
		Short: "Find messages by payload, header, error or due time, in all states",
		Long: `Prints the messages that match all flags, as soon as each is found: in the given queues,
or in all queues that the bridges know, and in every state. A message that is in several
places is printed for each place. With --json prints one object per line.

Redis has no index of contents, so the server looks at every message. It does so in steps
of about a millisecond, and uses at most the share --load of its time: by default a
tenth. 1,000,000 messages take about a minute. An interrupt ends the search, and
what was found stays printed. A message that moves meanwhile may be found twice, or
missed. "duestream act" changes what a search finds.`,
		Example: `  duestream search --text '"customer":4711'
  duestream search orders invoices --header tenant=acme --state ready,pending
  duestream search --error timeout --state dead --limit 0 --json`,
	}
	s.Flags(cmd, admin.States())
	cmd.Flags().IntVar(&limit, "limit", 100, "stop after this many; 0 = find all")
	return a.WithKnownQueues(cmd, func(args []string) error {
		if limit < 0 {
			return usage.Errorf("limit %d: must not be negative", limit)
		}
		return s.Complete(args)
	}, func(ctx context.Context, op *admin.Admin, _ []string) error {
		return search(ctx, a, op, s, limit)
	})
}

func search(ctx context.Context, a *cli.App, op *admin.Admin, s flags.Search, limit int) error {
	bar := term.NewProgress(a.Err, "looked at")
	out := hitTable{a: a, bar: bar, now: a.Now("")}
	options := admin.SearchOptions{Limit: limit, Load: s.Load, Progress: func(p admin.SearchProgress) {
		bar.Of(p.Looked, p.Total)
	}}
	p, err := op.Search(ctx, s.Filter, options, out.add)
	bar.Clear()
	looked := fmt.Sprintf("looked at %s of %s", human.Thousands(p.Looked), human.Counted(p.Total, "message"))
	switch {
	case errors.Is(err, context.Canceled):
		a.Note("stopped: found %s, %s", human.Thousands(p.Found), looked)
	case err != nil:
	case !p.Complete:
		a.Note("stopped at %s, %s: --limit 0 finds all", human.Counted(p.Found, "hit"), looked)
	case p.Found == 0:
		fmt.Fprintf(a.Text(), "nothing found: %s\n", looked)
	default:
		fmt.Fprintf(a.Text(), "found %s: %s\n", human.Thousands(p.Found), looked)
	}
	return err
}

// hitTable prints hits as they come. The columns have fixed widths, because later rows are not known yet.
type hitTable struct {
	a     *cli.App
	bar   *term.Progress
	now   time.Time
	begun bool // the header is printed
}

// hitWidths are the widths of the columns; the last column has none.
var hitWidths = []int{9, 14, 18, 30, 12}

func (t *hitTable) add(h admin.Hit) error {
	t.bar.Clear()
	if t.a.JSON {
		return t.a.PrintLine(h)
	}
	if !t.begun {
		t.begun = true
		titles := t.row("STATE", "DUE", "QUEUE", "ID", "FOR", "MORE")
		if _, err := fmt.Fprintln(t.a.Out, t.a.Paint(t.a.Out).Text(term.Strong, titles)); err != nil {
			return err
		}
	}
	due := "-"
	if !h.Due.IsZero() {
		due = human.Relative(h.Due, t.now)
	}
	group := h.Group
	if group == "" {
		group = strings.Join(h.Groups, " ")
	}
	_, err := fmt.Fprintln(t.a.Out, t.row(string(h.State), due, human.OneLine(h.Queue, 40), human.OneLine(h.ID, 60),
		human.OrDash(human.OneLine(group, 40)), moreOf(h)))
	return err
}

func (t *hitTable) row(cells ...string) string {
	var line strings.Builder
	for i, cell := range cells {
		line.WriteString(cell)
		if i < len(hitWidths) {
			line.WriteString(strings.Repeat(" ", max(0, hitWidths[i]-utf8.RuneCountInString(cell))+2))
		}
	}
	return line.String()
}

// moreOf returns what is special about a hit: its letter, consumer, error and headers.
func moreOf(h admin.Hit) string {
	var parts []string
	add := func(name, value string, most int) {
		if value != "" {
			parts = append(parts, strings.TrimLeft(name+" "+human.OneLine(value, most), " "))
		}
	}
	add("letter", h.Letter, 60)
	add("held by", h.Consumer, 40)
	if h.Cancelled {
		parts = append(parts, "cancelled")
	}
	add("", h.Reason, 40)
	add("error", h.Error, 60)
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		add("", name+"="+h.Headers[name], 40)
	}
	return human.OneLine(strings.Join(append(parts, human.Bytes(h.Bytes)), ", "), 200)
}
