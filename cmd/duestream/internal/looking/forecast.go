package looking

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// defaultWithin is the time of a forecast without --within.
const defaultWithin = time.Minute

// Forecast returns the command forecast.
func Forecast(a *cli.App) *cobra.Command {
	var group string
	within := defaultWithin
	cmd := &cobra.Command{
		Use:   "forecast <queue>",
		Short: "Count the work that a queue has now and will have soon",
		Long: `Counts the work of each group of a queue, now and within a time. Autoscalers use these
figures to start workers before a burst of messages is due.

  LAG      messages that this group has not read
  PENDING  messages that workers hold
  DUE      scheduled messages that are due now or within the time, retries included
  TOTAL    LAG + PENDING + DUE

DUE is the same for every group, because a message goes to all groups. A retry for one
group counts for every group. Messages that a pause, a rate or a ready limit holds back
count in DUE. Messages that wait for their keys do not count. A number with ~ is an upper
bound. A group that does not exist counts as a group that is created now and reads the
stream from its beginning.

In the output of --json, "total" is the greatest total of the groups. Over HTTP:
GET /v1/queues/{queue}/forecast.`,
		Example: `  duestream forecast emails --within 30s
  duestream forecast emails --within 30s --group mailer --json | jq .total`,
	}
	cli.GroupFlag(cmd, &group, "only this group")
	flags.DelayVar(cmd.Flags(), &within, "within", "count messages that become due within this time")
	count := func(ctx context.Context, op *admin.Admin, args []string) error {
		f, err := op.Forecast(ctx, args[0], group, within)
		if err != nil {
			return err
		}
		return a.Print(f, func() { printForecast(a, f) })
	}
	return a.WithKnownQueues(cmd, cli.GroupCheck(&group), count)
}

func printForecast(a *cli.App, f admin.QueueForecast) {
	rows := [][]string{{"GROUP", "LAG", "PENDING", "DUE", "TOTAL"}}
	due := human.Estimate(f.Due, false)
	for _, g := range f.Groups {
		name := human.OneLine(g.Name, 40)
		if g.Missing {
			name += " (does not exist)"
		}
		rows = append(rows, []string{name, human.Estimate(g.Lag, g.LagApprox), human.Estimate(g.Pending, false), due,
			human.Estimate(g.Total, g.LagApprox)})
	}
	if len(f.Groups) == 0 {
		rows = append(rows, []string{"(no group)", human.Estimate(f.Entries, false), "0", due,
			human.Estimate(f.Total, false)})
	}
	a.Table(rows)
	if notes := heldBack(f); len(notes) > 0 {
		fmt.Fprintf(a.Out, "(%s)\n", strings.Join(notes, "; "))
	}
}

// heldBack returns why some of the counted messages may not become ready within the time, or why others do not count.
func heldBack(f admin.QueueForecast) (notes []string) {
	if f.Held {
		notes = append(notes, "the queue is paused")
	}
	if f.HeldWorkers {
		notes = append(notes, "its workers are paused")
	}
	if f.Rate != "" {
		notes = append(notes, "the rate is "+string(f.Rate))
	}
	if f.ReadyLimit > 0 {
		notes = append(notes, fmt.Sprint("the ready limit is ", f.ReadyLimit))
	}
	if f.WaitForKey > 0 {
		notes = append(notes, human.Thousands(f.WaitForKey)+" more wait for their keys")
	}
	return notes
}
