package cli

import (
	"context"
	"slices"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/internal/written"
)

// QueuesOrAll returns the queues that the command line names, or all queues if it names none.
func QueuesOrAll(ctx context.Context, op *admin.Admin, queues []string) ([]string, error) {
	if len(queues) > 0 {
		return queues, nil
	}
	return op.Queues(ctx)
}

// queueNames offers the queues that the bridges know.
func queueNames(ctx context.Context, op *admin.Admin) []string {
	queues, _ := op.Queues(ctx)
	return queues
}

// groupNames offers the groups of a queue.
func groupNames(ctx context.Context, op *admin.Admin, queue string) []string {
	names, _ := Groups(ctx, op, queue)
	return names
}

// Groups returns the names of the groups of a queue.
func Groups(ctx context.Context, op *admin.Admin, queue string) (names []string, err error) {
	samples, err := op.Watcher(queue).Look(ctx)
	for _, q := range samples {
		for _, g := range q.Groups {
			names = append(names, g.Name)
		}
	}
	return names, err
}

// newestLetters offers the newest dead letters, each with the ID of its message and the reason.
func newestLetters(ctx context.Context, op *admin.Admin, queue string) (names []string) {
	filter := admin.LetterFilter{Newest: true, Limit: MostOffers}
	for l, err := range op.DeadLetters().List(ctx, queue, filter) {
		if err != nil {
			break
		}
		names = append(names, l.Letter+"\t"+human.OneLine(l.ID, 40)+" "+l.Reason)
	}
	return names
}

// nextIDs offers the IDs of the messages that are due next.
func nextIDs(ctx context.Context, op *admin.Admin, queue string) (ids []string) {
	next, _ := op.Peek(ctx, queue, MostOffers, false)
	for _, due := range next.Next {
		ids = append(ids, due.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Rhythm describes when a recurrence recurs.
func Rhythm(r bridge.Recurrence) string {
	if r.Every > 0 {
		text := "every " + written.Duration(r.Every)
		if r.Phase > 0 {
			text += " + " + written.Duration(r.Phase)
		}
		return text
	}
	return human.OneLine(r.Cron, 60) + " " + r.Zone
}

// recurrenceNames offers the recurrences of a queue, each with its rhythm.
func recurrenceNames(ctx context.Context, op *admin.Admin, queue string) (names []string) {
	states, _ := op.Recurrences(ctx, queue)
	for _, s := range states {
		names = append(names, s.Spec.Name+"\t"+Rhythm(s.Spec))
	}
	return names
}
