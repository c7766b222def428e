// Package looking has the commands that show what queues hold, and what is wrong with them.
package looking

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/live"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

const watchInterval = 2 * time.Second

// Stats returns the command stats.
func Stats(a *cli.App) *cobra.Command {
	var watch, partitions bool
	cmd := &cobra.Command{
		Use:   "stats [<queue>...]",
		Short: "Count the messages of queues and groups",
		Long: `Counts the messages of queues. Without arguments it counts all queues that the bridges know.

  SCHEDULED  messages that wait for their time, retries included
  OVERDUE    scheduled messages that are already due
  READY      messages that at least one group has not read
  LAG        messages that this group has not read
  UNREAD     how long the oldest message of LAG has been ready
  RETRYING   messages that are scheduled again for this group
  PENDING    messages that workers hold
  HELD       how long the oldest message of PENDING has been with its worker

A number with ~ is an estimate. A line with ! names a problem and the next step, the worst
problem first. These lines come from checks of duestream doctor that need almost no
further reading. The last line names each bridge by host, process ID and version.

--json prints a line per queue, with "advice". With --watch it prints a line per look,
with "time_ms", "bridges", "queues" and "advice". On a narrow terminal queues and groups
share columns. See also: duestream top.`,
		Example: `  duestream stats
  duestream stats emails --watch
  duestream stats --json | jq '{queue, dead}'`,
	}
	cmd.Flags().BoolVar(&partitions, "partitions", false, "also count each partition")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again every 2 s, until Ctrl-C")
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		if watch {
			return watchStats(ctx, a, op, args, partitions)
		}
		l, err := lookAtStats(ctx, op, args, partitions)
		if err != nil {
			return err
		}
		if a.JSON {
			defer cli.NoteNoBridge(a, l.bridges, l.bridgesErr)
		}
		return a.Print(l.byQueue(), func() { printStats(a, l) })
	})
}

// statsLook is the data of one look.
type statsLook struct {
	queues     []admin.QueueStats
	bridges    []admin.Heartbeat
	bridgesErr error // why the bridges could not be read
	advice     []doctor.Finding
}

// lookAtStats reads the stats, the heartbeats and the load of the server. It fails only if the stats cannot be read.
func lookAtStats(ctx context.Context, op *admin.Admin, queues []string, partitions bool) (l statsLook, err error) {
	if l.queues, err = readStats(ctx, op, queues, partitions); err != nil {
		return l, err
	}
	ctx, cancel := context.WithTimeout(ctx, live.AnswerTimeout)
	defer cancel()
	l.bridges, l.bridgesErr = op.Bridges(ctx)
	server, _ := op.ServerLoad(ctx)
	l.advice = op.Adviser().Advise(ctx, admin.Seen{Stats: l.queues, Bridges: l.bridges, BridgesFailed: l.bridgesErr != nil,
		Server: server})
	return l, nil
}

// queueWithAdvice is one line of stats --json.
type queueWithAdvice struct {
	admin.QueueStats
	Advice []doctor.Finding `json:"advice"` // advice for this queue and for all queues
}

func (l statsLook) byQueue() []queueWithAdvice {
	all := make([]queueWithAdvice, 0, len(l.queues))
	for _, q := range l.queues {
		one := queueWithAdvice{q, []doctor.Finding{}}
		for _, f := range l.advice {
			if f.Queue == "" || f.Queue == q.Queue {
				one.Advice = append(one.Advice, f)
			}
		}
		all = append(all, one)
	}
	return all
}

// readStats returns the stats of queues, or of all queues if none is named. It includes the stats of each partition if
// partitions is set.
func readStats(ctx context.Context, op *admin.Admin, queues []string, partitions bool) ([]admin.QueueStats, error) {
	queues, err := cli.QueuesOrAll(ctx, op, queues)
	if err != nil {
		return nil, err
	}
	all := make([]admin.QueueStats, 0, len(queues))
	for _, queue := range queues {
		s, err := op.Stats(ctx, queue)
		if err != nil {
			return nil, err
		}
		if !partitions {
			s.ByPartition = nil
		}
		all = append(all, s)
	}
	return all, nil
}

// watchStats prints the stats again and again until ctx ends, and then returns nil.
func watchStats(ctx context.Context, a *cli.App, op *admin.Admin, queues []string, partitions bool) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		l, err := lookAtStats(ctx, op, queues, partitions)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case a.JSON:
			err = a.PrintLine(statsLine{time.Now().UnixMilli(), heartbeat.HealthOf(l.bridges), l.queues, l.advice})
		default:
			if terminal, ok := term.FileOf(a.Out); ok && term.IsTerminal(a.Out) {
				fmt.Fprint(terminal, term.ClearScreen)
			}
			fmt.Fprintln(a.Out, time.Now().Format(time.DateTime))
			printStats(a, l)
			err = term.Failed(a.Out)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// statsLine is one line of stats --watch --json.
type statsLine struct {
	Time    int64              `json:"time_ms"`
	Bridges []heartbeat.Health `json:"bridges"`
	Queues  []admin.QueueStats `json:"queues"`
	Advice  []doctor.Finding   `json:"advice"`
}

// maxAdvice is the number of findings that stats prints at most.
const maxAdvice = 5

func printStats(a *cli.App, l statsLook) {
	printQueues(a, l.queues)
	for _, f := range l.advice[:min(maxAdvice, len(l.advice))] {
		a.Warning("%s", human.OneLine(f.Line(), 400))
	}
	if more := len(l.advice) - maxAdvice; more > 0 {
		a.Warning("and %d more. Next: duestream doctor", more)
	}
	fmt.Fprintln(a.Out, heartbeat.Line(l.bridges, l.bridgesErr))
}

func printQueues(a *cli.App, all []admin.QueueStats) {
	if len(all) == 0 {
		fmt.Fprintln(a.Out, "no queues")
		return
	}
	table := statsRows(all, a.Now(""))
	wide, width := table.wide(), term.Width(a.Out)
	if width > 0 && term.TableWidth(wide) > width && !hasPartitionRows(all) {
		a.Paint(a.Out).TableWithHeaders(a.Out, 2, table.narrow())
	} else {
		a.Table(wide)
	}
	for _, s := range all {
		for _, w := range s.Warnings {
			a.Warning("%s: %s", s.Queue, w)
		}
	}
}
