package looking

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// Story returns the command story.
func Story(a *cli.App) *cobra.Command {
	var queues []string
	var limit int
	cmd := &cobra.Command{
		Use:   "story [<id>]",
		Short: "Show the history of a message, also of one that is gone, or of a queue",
		Long: `Prints the recorded changes of state of a message: when, by which program, which
attempt, how late, and why. Without an ID, prints the newest changes of the queue that
--queue names, newest first. A queue keeps a history if its policy has one:

  duestream queue set emails history=50000/24h

This keeps at least the newest 50,000 changes of each partition, for a day. "Held" is
the time since the delivery, or since its last extension. Plain commands (XREADGROUP,
XACK) and purges are not recorded. duestream find shows where a message is now. The exit
code is 3 if no change is recorded, or if no queue keeps a history.`,
		Example: "  duestream story order-42\n  duestream story order-42 --queue emails --json\n" +
			"  duestream story --queue emails --limit 20",
	}
	checkQueues := cli.QueuesFlag(a, cmd, &queues, "read the history of this queue only; may be repeated")
	cmd.Flags().IntVar(&limit, "limit", 50, "without an ID: print at most this many changes, up to 1000")
	check := func(args []string) error {
		switch {
		case len(args) == 0 && len(queues) != 1:
			return usage.Errorf("give the ID of a message, or one --queue to see its newest changes")
		case len(args) > 0 && cmd.Flags().Changed("limit"):
			return usage.Errorf("--limit is for the history of a queue: give it without an ID")
		case limit < 1 || limit > admin.MaxRecent:
			return usage.Errorf("limit %d: must be between 1 and %d", limit, admin.MaxRecent)
		}
		return checkQueues(args)
	}
	return a.WithAdmin(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := cli.CheckKnown(ctx, op, queues...); err != nil {
			return err
		}
		if len(args) == 0 {
			recent, err := op.Recent(ctx, queues[0], limit)
			if err != nil {
				return err
			}
			return a.Print(recent, func() { printRecent(a, recent) })
		}
		s, err := readStory(ctx, a, op, args[0], queues)
		if err != nil {
			return err
		}
		return a.Print(s, func() { printChanges(a, s.Changes, s.At) })
	})
}

// readStory reads the story of a message, and draws a progress bar if that is slow.
func readStory(ctx context.Context, a *cli.App, op *admin.Admin, id string, queues []string) (admin.Story, error) {
	bar := term.NewProgress(a.Err, "read")
	defer bar.Clear()
	return op.Story(ctx, id, admin.StoryOptions{Queues: queues, Progress: slowProgress(bar)})
}

// printChanges prints changes as a timeline.
func printChanges(a *cli.App, changes []admin.Change, now time.Time) {
	queues := map[string]bool{}
	for _, c := range changes {
		queues[c.Queue] = true
	}
	rows := [][]string{}
	for _, c := range changes {
		row := []string{c.At.Local().Format(millisecondTime), human.Relative(c.At, now)}
		if len(queues) > 1 {
			row = append(row, c.Queue)
		}
		rows = append(rows, append(row, changeText(c)))
	}
	term.Table(a.Out, rows)
}

// printRecent prints the newest changes of a queue, with the IDs of their messages.
func printRecent(a *cli.App, recent admin.Recent) {
	if len(recent.Changes) == 0 {
		fmt.Fprintln(a.Out, "nothing was recorded yet")
	}
	rows := [][]string{}
	for _, c := range recent.Changes {
		rows = append(rows, []string{c.At.Local().Format(millisecondTime), human.Relative(c.At, recent.At),
			human.OrDash(human.OneLine(c.ID, 60)), changeText(c.Change)})
	}
	term.Table(a.Out, rows)
	if recent.More {
		a.Note("older changes are left out: a greater --limit, or the ID of a message, shows more")
	}
}

// changeText describes a change in words.
func changeText(c admin.Change) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("%s", human.OneLine(c.Event, 40))
	if c.Group != "" {
		say(" in %s", human.OneLine(c.Group, 60))
	}
	if c.Attempt > 0 {
		say(", attempt %d", c.Attempt)
	}
	switch {
	case c.Event == admin.EventReady:
		say(", %s late", human.Short(time.Duration(c.Late)))
	case c.Event == admin.EventDead || c.Due.IsZero():
	default:
		say(", due %s", c.Due.Local().Format("15:04:05.000"))
		if d := c.Due.Sub(c.At); d > 0 {
			say(" (in %s)", human.Short(d))
		}
	}
	if c.Reason != "" {
		say(", %s", human.OneLine(c.Reason, 60))
	}
	if c.Error != "" {
		say(": %s", human.OneLine(c.Error, 200))
	}
	if c.After > 0 {
		say(", %s after it was ready", human.Short(time.Duration(c.After)))
	}
	if c.Idle > 0 {
		say(", held for %s", human.Short(time.Duration(c.Idle)))
	}
	if c.Entry != "" {
		say(", entry %s", human.OneLine(c.Entry, 60))
	}
	if c.Letter != "" {
		say(", dead letter %s", human.OneLine(c.Letter, 60))
	}
	if c.Consumer != "" {
		say(", held by %s", human.OneLine(c.Consumer, 100))
	}
	if c.By != "" {
		say(", by %s", human.OneLine(c.By, 100))
	}
	return b.String()
}
