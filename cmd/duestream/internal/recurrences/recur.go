// Package recurrences has the commands about messages that are scheduled again and again.
package recurrences

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// Recur returns the command recur.
func Recur(a *cli.App) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "recur", Short: "Schedule messages again and again",
		Long: `A recurrence schedules messages again and again, by a cron expression in a time zone or
at a fixed interval. Its next occurrence is in the schedule as an ordinary message with
the ID <name>@<Unix ms>. peek, find, cancel and all other commands treat it like any
message.`,
		Example: `  duestream recur add reports nightly --cron @daily --zone Europe/Paris '{"to":"all"}'
  duestream recur add probes ping --every 1s
  duestream recur list`,
	}, recurAdd(a), recurList(a), recurShow(a), recurPause(a), recurResume(a), recurRun(a), recurRm(a), recurApply(a))
}

// recurrenceAnswer is a recurrence as JSON.
type recurrenceAnswer struct {
	Queue   string            `json:"queue"`
	Name    string            `json:"name"`
	Spec    bridge.Recurrence `json:"spec"`
	Next    []time.Time       `json:"next"`
	Last    *time.Time        `json:"last,omitempty"`
	LastID  string            `json:"last_id,omitempty"`
	Planned int               `json:"planned"` // occurrences planned so far; --count limits them
	Problem string            `json:"problem,omitempty"`
}

func newRecurrenceAnswer(s bridge.RecurrenceState) recurrenceAnswer {
	r := recurrenceAnswer{Queue: s.Spec.Queue, Name: s.Spec.Name, Spec: s.Spec, Next: s.Next, LastID: s.LastID,
		Planned: s.Used, Problem: s.Problem}
	if !s.Last.IsZero() {
		r.Last = &s.Last
	}
	if r.Next == nil {
		r.Next = []time.Time{}
	}
	return r
}

// zoneTime formats a time in its own time zone.
func zoneTime(t time.Time) string { return t.Format("Mon 2006-01-02 15:04:05 -0700") }

func nextTimes(s bridge.RecurrenceState) string {
	var next []string
	for _, t := range s.Next {
		next = append(next, zoneTime(t))
	}
	return strings.Join(next, ", ")
}

// stateOf describes the state of a recurrence in a few words.
func stateOf(s bridge.RecurrenceState) string {
	switch {
	case s.Problem != "":
		return "wrong: " + human.OneLine(s.Problem, 80)
	case s.Spec.Paused:
		return "paused"
	case !s.Unplanned.IsZero():
		return "not planned since " + zoneTime(s.Unplanned)
	case len(s.Next) == 0:
		return "ended"
	}
	return "active"
}

// printRecurrence prints a recurrence after a change. did names the change, such as "added". takenBack is the number of
// planned messages that were taken back.
func printRecurrence(ctx context.Context, a *cli.App, op *admin.Admin, queue, name, did string, takenBack int) error {
	s, err := op.Recurrence(ctx, queue, name)
	if err != nil {
		return err
	}
	value := struct {
		recurrenceAnswer
		Did       string `json:"did"`
		TakenBack int    `json:"taken_back"`
	}{newRecurrenceAnswer(s), did, takenBack}
	return a.Print(value, func() {
		text := fmt.Sprintf("%s  %s", name, did)
		if takenBack > 0 {
			text += ", " + human.Counted(takenBack, "planned message") + " taken back"
		}
		if len(s.Next) > 0 && !s.Spec.Paused {
			text += "; next " + zoneTime(s.Next[0]) + " (" + human.Relative(s.Next[0], a.Now(queue)) + ")"
		}
		fmt.Fprintln(a.Out, text)
	})
}
