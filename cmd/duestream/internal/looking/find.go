package looking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// Find returns the command find.
func Find(a *cli.App) *cobra.Command {
	var queues []string
	cmd := &cobra.Command{
		Use:   "find <id>",
		Short: "Find a message in all queues, with its known history",
		Long: `Prints every place where a message is, in all queues that the bridges know, or in the
queues of --queue. A message is scheduled, retrying, ready (for which groups), pending
(at which consumer) or dead. The first line of a place says why the message is not
delivered, or not done.

After the places comes the message's history: its past and future, as far as Redis holds
them now. Then comes its story, if the queue records one (see duestream story). The exit
code is 3 if the message is nowhere: every group acknowledged it, it was cancelled or
purged, or it never existed. In this case --json prints where the command looked.

A scheduled message is looked up by its ID. All ready, pending, retrying and dead
messages are searched. Each place is printed as soon as it is found.`,
		Example: "  duestream find order-42\n  duestream find order-42 --queue emails --queue invoices --json",
	}
	check := cli.QueuesFlag(a, cmd, &queues, "look in this queue only; may be repeated")
	return a.WithAdmin(cmd, check, func(ctx context.Context, op *admin.Admin, args []string) error {
		if err := cli.CheckKnown(ctx, op, queues...); err != nil {
			return err
		}
		return findMessage(ctx, a, op, args[0], queues)
	})
}

func findMessage(ctx context.Context, a *cli.App, op *admin.Admin, id string, queues []string) error {
	bar, printed := term.NewProgress(a.Err, "looked through"), false
	began, now := time.Now(), a.Now("")
	options := admin.FindOptions{Queues: queues, Progress: slowProgress(bar)}
	if !a.JSON {
		options.Seen = func(s admin.Sighting) {
			bar.Clear()
			if printed {
				fmt.Fprintln(a.Out)
			}
			printed = true
			describeSighting(a, s, now.Add(time.Since(began)))
		}
	}
	f, err := op.Find(ctx, id, options)
	bar.Clear()
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		return err
	}
	story, storyErr := readStory(ctx, a, op, id, queues)
	if storyErr != nil && !errors.Is(storyErr, admin.ErrUntold) && !errors.Is(storyErr, admin.ErrNoHistory) {
		a.Note("duestream: the story of the message was not read: %s", storyErr)
	}
	printErr := a.Print(foundMessage{Finding: f, Story: story.Changes}, func() {
		if err == nil {
			describeHistory(a, f)
		}
		if len(story.Changes) > 0 {
			fmt.Fprintln(a.Out, "\nstory:")
			printChanges(a, story.Changes, story.At)
		}
	})
	if printErr != nil || err == nil {
		return printErr
	}
	return fmt.Errorf("nowhere: %w", notFound(a, f))
}

// foundMessage is the result as JSON: the places and the history that Redis holds now, and the recorded story.
type foundMessage struct {
	admin.Finding
	Story []admin.Change `json:"story,omitempty"`
}

// slowProgress returns a function that draws a progress bar after the first 200 ms. Most searches end sooner.
func slowProgress(bar *term.Progress) func(done, total int64) {
	began := time.Now()
	return func(done, total int64) {
		if time.Since(began) > 200*time.Millisecond {
			bar.Of(done, total)
		}
	}
}

// notFound returns the error for a message that was not found. Its text says where Find looked, when the ID was made,
// and whether a dedup window remembers the ID.
func notFound(a *cli.App, f admin.Finding) error {
	var known []string
	for _, m := range f.History {
		known = append(known, "its ID says that it was made "+human.Clock(m.At, f.At))
	}
	if f.Why != "" {
		known = append(known, f.Why)
	}
	where := "the one queue searched"
	if f.Queues != 1 {
		where = "any of the " + human.Thousands(f.Queues) + " queues searched"
	}
	text := fmt.Sprintf("%s is not scheduled in %s, nor one of the %s retries, entries and dead letters there",
		human.OneLine(f.ID, 256), where, human.Thousands(f.Looked))
	return fmt.Errorf("%s: %w", strings.Join(append([]string{text}, known...), "; "), admin.ErrNotFound)
}

func describeSighting(a *cli.App, s admin.Sighting, now time.Time) {
	rows := [][]string{{"why", human.OneLine(s.Why, 1024)}, {"queue", s.Queue}}
	rows = append(rows, placeRows(s.Place, now)...)
	if s.Deliveries > 1 {
		rows = append(rows, []string{"deliveries", fmt.Sprint(s.Deliveries)})
	}
	if s.Cancelled {
		rows = append(rows, []string{"cancelled",
			"yes: the worker is told, and the message ends when the worker releases it"})
	}
	a.Describe(rows, s.Headers, s.Payload)
}

// millisecondTime is the layout of the times in histories and tables.
const millisecondTime = "2006-01-02 15:04:05.000"

func describeHistory(a *cli.App, f admin.Finding) {
	fmt.Fprintln(a.Out, "\nhistory:")
	rows := [][]string{}
	for _, m := range f.History {
		rows = append(rows, []string{"  " + m.At.Local().Format(millisecondTime),
			human.Relative(m.At, f.At), momentText(m, f.At)})
	}
	for _, w := range f.Windows {
		rows = append(rows, []string{"  " + w.Until.Local().Format(millisecondTime), human.Relative(w.Until, f.At),
			"end of its dedup window in " + w.Queue})
	}
	term.Table(a.Out, rows)
}

func momentText(m admin.Moment, now time.Time) string {
	detail := human.OneLine(m.Detail, 200)
	withDetail := func(text, separator string) string {
		if detail != "" {
			text += separator + detail
		}
		return text
	}
	withAttempt := func(text string) string {
		if m.Attempt > 0 {
			text += fmt.Sprintf(", attempt %d", m.Attempt)
		}
		if m.Group != "" {
			text += " of " + human.OneLine(m.Group, 60)
		}
		return text
	}
	switch m.What {
	case admin.MomentMade:
		return "scheduled: the time in its ID, by the producer's clock"
	case admin.MomentDue:
		if m.At.After(now) {
			return withDetail(withAttempt("will be due in "+m.Queue), "; ")
		}
		return withDetail(withAttempt("due in "+m.Queue), "; ")
	case admin.MomentReady:
		return withDetail(withAttempt("ready in "+m.Queue+" as entry "+m.Entry), ", ")
	case admin.MomentDelivered:
		return withAttempt("delivered to " + human.OrDash(detail))
	case admin.MomentDead:
		return withDetail(withAttempt("dead in "+m.Queue), ": ")
	case admin.MomentExpires:
		return "expires: if it becomes ready later than this, it is a dead letter at once"
	}
	return withDetail(withAttempt(m.What), ": ")
}
