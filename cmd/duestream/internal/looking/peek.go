package looking

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const peekLimit = 10_000

// Peek returns the command peek.
func Peek(a *cli.App) *cobra.Command {
	var n int
	var payload bool
	cmd := &cobra.Command{
		Use:   "peek <queue>",
		Short: "Show what is due next",
		Long: `Shows the messages of the schedule that are due first, retries included, of all
partitions together: due time, ID, attempt, the group that a retry is for, size of the
payload, headers. With --json prints one object per line. Overdue messages are marked. A
bridge takes an overdue message at once, unless the queue is paused. "waits for key"
marks a due message that waits until another message with its ordering key is done.`,
		Example: "  duestream peek emails\n  duestream peek emails -n 100 --payload --json",
	}
	cmd.Flags().IntVarP(&n, "number", "n", 10, "number of messages, at most 10000")
	cmd.Flags().BoolVar(&payload, "payload", false, "also show the payloads")
	return a.WithKnownQueues(cmd, func([]string) error {
		if n < 1 || n > peekLimit {
			return usage.Errorf("number %d: must be between 1 and %d", n, peekLimit)
		}
		return nil
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		p, err := op.Peek(ctx, args[0], n, payload)
		if err != nil {
			return err
		}
		return listPeeked(a, p, payload)
	})
}

func listPeeked(a *cli.App, p admin.Peeked, payload bool) error {
	titles := []string{"DUE", "", "ID", "ATTEMPT", "FOR", "BYTES", "HEADERS"}
	if payload {
		titles = append(titles, "PAYLOAD")
	}
	list := a.List(titles...)
	for _, d := range p.Next {
		when := human.Relative(d.Due, p.At)
		if d.Overdue {
			when = "overdue " + strings.TrimSuffix(when, " ago")
		}
		if d.Waits { // another message with the same ordering key is in flight
			when = "waits for key " + human.OneLine(d.Key, 40)
		}
		attempt := strconv.Itoa(d.Attempt)
		if d.MaxAttempts > 0 {
			attempt += " of " + strconv.Itoa(d.MaxAttempts)
		}
		row := []string{
			d.Due.Local().Format(millisecondTime), when, human.OneLine(d.ID, 40), attempt,
			human.OrDash(human.OneLine(d.For, 30)),
			strconv.FormatInt(d.Bytes, 10), headersCell(d),
		}
		if payload {
			row = append(row, human.OneLine(string(d.Payload), 120))
		}
		list.Add(d, row...)
	}
	err := list.Finish("nothing is scheduled")
	if more := p.Total - int64(len(p.Next)); more > 0 {
		a.More(fmt.Sprintf("(and %s more: see -n)", human.Thousands(more)))
	}
	if p.Held && len(p.Next) > 0 {
		fmt.Fprintln(a.Text(), "! the queue is paused: none of these messages becomes ready until `duestream resume`")
	}
	return err
}

// headersCell formats headers on one line: name=value, name=value.
func headersCell(d admin.Due) string {
	if d.Malformed {
		return "(malformed: becomes a dead letter)"
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		pairs = append(pairs, name+"="+d.Headers[name])
	}
	return human.OrDash(human.OneLine(strings.Join(pairs, ", "), 60))
}
