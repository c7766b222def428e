package looking

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// Show returns the command show.
func Show(a *cli.App) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show <queue> <id>",
		Short: "Show where a message is",
		Long: `Shows every place where Redis holds a message: scheduled, retrying, ready, pending (at
which consumer) or dead. The exit code is 3 if there is none: every group acknowledged
the message, it was cancelled or purged, or it never existed.`,
		Example: "  duestream show emails order-42\n  duestream show emails order-42 --json\n  duestream show emails order-42 --raw >payload",
	}
	return cli.RawFlag(a.WithAdmin(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		queue, id := args[0], args[1]
		places, err := op.Locate(ctx, queue, id)
		if err != nil {
			return err
		}
		if raw { // Locate returns at least one place, or an error
			return a.PrintRaw(places[0].Payload)
		}
		return a.Print(places, func() {
			now := a.Now(queue)
			for i, p := range places {
				if i > 0 {
					fmt.Fprintln(a.Out)
				}
				a.Describe(placeRows(p, now), p.Headers, p.Payload)
			}
		})
	}), &raw)
}

// placeRows returns the table rows of a place, without headers and payload.
func placeRows(p admin.Place, now time.Time) [][]string {
	rows := [][]string{{"state", string(p.State)}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, human.OneLine(value, 256)})
		}
	}
	if p.Partition > 0 {
		add("partition", strconv.Itoa(p.Partition))
	}
	add("group", p.Group)
	add("groups", strings.Join(p.Groups, ", "))
	add("consumer", p.Consumer)
	if !p.HeldSince.IsZero() {
		add("held", "since "+human.Clock(p.HeldSince, now))
	}
	if p.Idle > 0 {
		add("idle", human.Short(time.Duration(p.Idle)))
	}
	add("reason", p.Reason)
	rows = append(rows, output.TimeRows(now, "due", p.Due, "dead", p.Dead, "expires", p.Expires)...)
	add("key", p.Key)
	attempt := strconv.Itoa(p.Attempt)
	if p.MaxAttempts > 0 {
		attempt += " of " + strconv.Itoa(p.MaxAttempts)
	}
	add("attempt", attempt)
	add("error", p.Error)
	add("entry", p.Entry)
	add("letter", p.Letter)
	return rows
}
