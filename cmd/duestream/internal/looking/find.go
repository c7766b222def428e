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
		Short: "Find a message in all queues, with what is known of its history",
		Long: `Says every place where a message is, in all queues that the bridges know or in those
named with --queue: scheduled, retrying, ready and for which groups, pending and with
whom, dead. The first line of a place says why the message is not delivered, or not
done. Then come its known past and future as a timeline, and its story, in queues that
keep a history (duestream story). Exit code 3 when it is nowhere: every group
acknowledged it, it was cancelled or purged, or never existed; --json then prints what
was looked at.

What is scheduled is looked up; ready, pending, retrying and dead messages are looked for
through all there are, and each place is printed as soon as it is found.`,
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
	begun, now := time.Now(), a.Now("")
	options := admin.FindOptions{Queues: queues, Progress: func(looked, total int64) {
		if time.Since(begun) > 200*time.Millisecond { // most searches end sooner
			bar.Of(looked, total)
		}
	}}
	if !a.JSON {
		options.Seen = func(s admin.Sighting) {
			bar.Clear()
			if printed {
				fmt.Fprintln(a.Out)
			}
			printed = true
			describeSighting(a, s, now.Add(time.Since(begun)))
		}
	}
	f, err := op.Find(ctx, id, options)
	bar.Clear()
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		return err
	}
	found := foundMessage{Finding: f}
	s, unread := readStory(ctx, a, op, id, queues)
	if unread != nil && !errors.Is(unread, admin.ErrUntold) && !errors.Is(unread, admin.ErrNoHistory) {
		a.Note("duestream: its story was not read: %s", unread)
	}
	found.Story = s.Changes
	if printing := a.Print(found, func() {
		if err == nil {
			describeHistory(a, f)
		}
		if len(s.Changes) > 0 {
			fmt.Fprintln(a.Out, "\nstory:")
			tellStory(a, s.Changes, s.At)
		}
	}); printing != nil || err == nil {
		return printing
	}
	return fmt.Errorf("nowhere: %w", notFound(a, f))
}

// foundMessage is the result as JSON: the places and times that Redis holds, and the recorded history.
type foundMessage struct {
	admin.Finding
	Story []admin.Change `json:"story,omitempty"`
}

// notFound returns the error for a message that was not found: where Find looked, and what the message's ID and dedup
// windows tell.
func notFound(a *cli.App, f admin.Finding) error {
	var known []string
	for _, m := range f.History {
		known = append(known, "its ID says that it was made "+human.Clock(m.At, f.At))
	}
	if f.Why != "" {
		known = append(known, f.Why)
	}
	where := "in the one queue"
	if f.Queues != 1 {
		where = "in any of " + human.Thousands(f.Queues) + " queues"
	}
	text := fmt.Sprintf("%s is not %s looked at, nor in the %s retries, entries and dead letters there", human.OneLine(f.ID, 256),
		where, human.Thousands(f.Looked))
	return fmt.Errorf("%s: %w", strings.Join(append([]string{text}, known...), "; "), admin.ErrNotFound)
}

func describeSighting(a *cli.App, s admin.Sighting, now time.Time) {
	rows := [][]string{{"why", human.OneLine(s.Why, 1024)}, {"queue", s.Queue}}
	rows = append(rows, placeRows(s.Place, now)...)
	if s.Deliveries > 1 {
		rows = append(rows, []string{"deliveries", fmt.Sprint(s.Deliveries)})
	}
	if s.Cancelled {
		rows = append(rows, []string{"cancelled", "yes: the worker is told, and the message ends when it lets go"})
	}
	a.Describe(rows, s.Headers, s.Payload)
}

func describeHistory(a *cli.App, f admin.Finding) {
	fmt.Fprintln(a.Out, "\nhistory:")
	rows := [][]string{}
	for _, m := range f.History {
		rows = append(rows, []string{"  " + m.At.Local().Format("2006-01-02 15:04:05.000"),
			human.Relative(m.At, f.At), momentText(m, f.At)})
	}
	for _, w := range f.Windows {
		rows = append(rows, []string{"  " + w.Until.Local().Format("2006-01-02 15:04:05.000"), human.Relative(w.Until, f.At),
			"end of its dedup window in " + w.Queue})
	}
	term.Table(a.Out, rows)
}

func momentText(m admin.Moment, now time.Time) string {
	detail := human.OneLine(m.Detail, 200)
	with := func(text, parted string) string {
		if detail != "" {
			text += parted + detail
		}
		return text
	}
	of := func(text string) string {
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
			return with(of("will be due in "+m.Queue), "; ")
		}
		return with(of("due in "+m.Queue), "; ")
	case admin.MomentReady:
		return with(of("ready in "+m.Queue+" as entry "+m.Entry), ", ")
	case admin.MomentDelivered:
		return of("delivered to " + human.OrDash(detail))
	case admin.MomentDead:
		return with(of("dead in "+m.Queue), ": ")
	case admin.MomentExpires:
		return "expires: becomes a dead letter if it is drained later"
	}
	return with(of(m.What), ": ")
}
