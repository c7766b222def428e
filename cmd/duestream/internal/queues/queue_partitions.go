package queues

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

func queuePartitions(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "partitions <queue> [<n>]",
		Short: "Show the partitions of a queue, or grow it to n",
		Long: `Shows the partitions of a queue, and what each holds. With a number from 1 to 256, the
command grows the queue to that many partitions, also while it is in use. Producers,
bridges and workers notice within seconds. A queue never shrinks. After an error repeat
the command: with the current number it completes a growth that failed.

The ordering key of a message decides its partition, or its ID if it has no ordering
key. Order is kept within a partition only. A queue that holds messages with ordering
keys does not grow, because most keys would move to another partition, where their new
messages would be delivered beside the old ones. --despite-keys grows the queue anyway.`,
		Example: "  duestream queue partitions emails\n  duestream queue partitions emails 8\n" +
			"  duestream queue partitions imports 8 --create",
	}
	n := 0
	despiteKeys := cmd.Flags().Bool("despite-keys", false,
		"grow, although messages of one ordering key may be delivered side by side until the present messages are done")
	return a.WithQueues(cmd, func(args []string) (err error) {
		if len(args) < 2 {
			return nil
		}
		if n, err = strconv.Atoi(args[1]); err != nil {
			return usage.Errorf("partitions %q: must be a whole number", args[1])
		}
		return admin.CheckPartitions(n)
	}, func(ctx context.Context, op *admin.Admin, args []string) error {
		if len(args) == 2 {
			return growQueue(ctx, a, op, args[0], n, *despiteKeys)
		}
		return showPartitions(ctx, a, op, args[0])
	})
}

// partitionCounts is the JSON of queue partitions, with and without a number.
type partitionCounts struct {
	Queue       string                 `json:"queue"`
	Partitions  int                    `json:"partitions"`
	Counts      []int                  `json:"counts"`
	ByPartition []admin.PartitionStats `json:"by_partition,omitempty"`
}

func growQueue(ctx context.Context, a *cli.App, op *admin.Admin, queue string, n int, despiteKeys bool) error {
	grow := op.SetPartitions
	if despiteKeys {
		grow = op.SetPartitionsDespiteKeys
	}
	bar := term.NewProgress(a.Err, "partitions")
	counts, err := grow(ctx, queue, n, func(done, total int) {
		share := float64(done) / float64(total)
		bar.Show(int64(share*float64(n)), share)
	})
	bar.Clear()
	if err != nil {
		return err
	}
	value := partitionCounts{Queue: queue, Partitions: counts.Latest(), Counts: counts}
	return a.Print(value, func() { fmt.Fprintf(a.Out, "%s has %s\n", queue, human.Counted(counts.Latest(), "partition")) })
}

func showPartitions(ctx context.Context, a *cli.App, op *admin.Admin, queue string) error {
	counts, err := op.Partitions(ctx, queue)
	if err != nil {
		return err
	}
	stats, err := op.Stats(ctx, queue)
	if err != nil {
		return err
	}
	if stats.ByPartition == nil {
		one := admin.PartitionStats{
			Scheduled: stats.Scheduled, Overdue: stats.Overdue, Ready: stats.Ready, ReadyApprox: stats.ReadyApprox,
			Entries: stats.Entries, Dead: stats.Dead,
		}
		for _, g := range stats.Groups {
			one.Pending += g.Pending
		}
		stats.ByPartition = []admin.PartitionStats{one}
	}
	value := partitionCounts{Queue: queue, Partitions: stats.Partitions, Counts: counts, ByPartition: stats.ByPartition}
	return a.Print(value, func() {
		term.Table(a.Out, [][]string{{"partitions", strconv.Itoa(stats.Partitions)}, {"counts so far", counts.String()}})
		fmt.Fprintln(a.Out)
		rows := [][]string{{"PARTITION", "SCHEDULED", "OVERDUE", "READY", "PENDING", "DEAD"}}
		for _, p := range stats.ByPartition {
			rows = append(rows, []string{
				strconv.Itoa(p.Partition), human.Estimate(p.Scheduled, false), human.Estimate(p.Overdue, false),
				human.Estimate(p.Ready, p.ReadyApprox),
				human.Estimate(p.Pending, false), human.Estimate(p.Dead, false),
			})
		}
		a.Table(rows)
		for _, w := range stats.Warnings {
			a.Warning("%s", w)
		}
	})
}
