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

const watchEvery = 2 * time.Second

// Stats returns the command stats.
func Stats(a *cli.App) *cobra.Command {
	var watch, partitions bool
	cmd := &cobra.Command{
		Use:   "stats [<queue>...]",
		Short: "Count what queues hold, per group",
		Long: `Counts what queues hold; without arguments of all queues that the bridges know.

  SCHEDULED  waiting for their time, retries included     OVERDUE  of them, past it
  READY      not given to some group yet                  LAG      not given to this group yet
  UNREAD     for how long the oldest of these has waited  RETRYING scheduled again for this group
  PENDING    held by a worker                             HELD     for how long the oldest of these
                                                                   has been with its worker

~ before a number: it is an estimate. Lines with ! say what is wrong, the worst first, and
what to do next, by those checks of duestream doctor that cost nothing more here. The last
line names the bridges, each by host, process ID and version. With --json a line per
queue, with "advice"; with --watch, too, one per look, with "time_ms", "bridges", "queues"
and "advice". On a narrow terminal queues and groups share columns. See also: duestream top.`,
		Example: `  duestream stats
  duestream stats emails --watch
  duestream stats --json | jq '{queue, dead}'`,
	}
	cmd.Flags().BoolVar(&partitions, "partitions", false, "also what each partition holds")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again every 2 s, until Ctrl-C")
	return a.WithKnownQueues(cmd, nil, func(ctx context.Context, op *admin.Admin, args []string) error {
		if watch {
			return watchStats(ctx, a, op, args, partitions)
		}
		l, err := lookAtStats(ctx, a, op, args, partitions)
		if err != nil {
			return err
		}
		if a.JSON {
			defer cli.NoteNoBridge(a, l.bridges, l.unknown)
		}
		return a.Print(l.byQueue(), func() { printStats(a, l) })
	})
}

// statsLook is the data of one look.
type statsLook struct {
	queues  []admin.QueueStats
	bridges []admin.Heartbeat
	unknown error // why the bridges could not be read
	advice  []doctor.Finding
}

// lookAtStats reads the stats, the heartbeats and the load of the server. Only unread stats are an error.
func lookAtStats(ctx context.Context, a *cli.App, op *admin.Admin, queues []string, partitions bool) (l statsLook,
	err error) {
	if l.queues, err = readStats(ctx, a, op, queues, partitions); err != nil {
		return l, err
	}
	ctx, cancel := context.WithTimeout(ctx, live.NoAnswer)
	defer cancel()
	l.bridges, l.unknown = op.Bridges(ctx)
	server, _ := op.ServerLoad(ctx)
	l.advice = op.Advise(admin.Seen{Stats: l.queues, Bridges: l.bridges, BridgesFailed: l.unknown != nil, Server: server})
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

// readStats returns the stats of queues, with those of their partitions if partitions is set.
func readStats(ctx context.Context, a *cli.App, op *admin.Admin, queues []string,
	partitions bool) ([]admin.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = op.Queues(ctx); err != nil {
			return nil, err
		}
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
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	for {
		l, err := lookAtStats(ctx, a, op, queues, partitions)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case a.JSON:
			err = a.PrintLine(statsLine{time.Now().UnixMilli(), heartbeat.HealthOf(l.bridges), l.queues, l.advice})
		default:
			if terminal, ok := term.FileOf(a.Out); ok && term.IsTerminal(a.Out) {
				fmt.Fprint(terminal, "\x1b[H\x1b[2J")
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
		case <-again.C:
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

// mostAdvice is the number of lines of advice that stats prints.
const mostAdvice = 5

func printStats(a *cli.App, l statsLook) {
	printQueues(a, l.queues)
	for _, f := range l.advice[:min(mostAdvice, len(l.advice))] {
		a.Warning("%s", human.OneLine(f.Line(), 400))
	}
	if more := len(l.advice) - mostAdvice; more > 0 {
		a.Warning("and %d more. Next: duestream doctor", more)
	}
	fmt.Fprintln(a.Out, heartbeat.Line(l.bridges, l.unknown))
}

func printQueues(a *cli.App, all []admin.QueueStats) {
	if len(all) == 0 {
		fmt.Fprintln(a.Out, "no queues")
		return
	}
	wide := statsRows(all, a.Now(""))
	if rows, width := wide.merged(), term.Width(a.Out); width > 0 && term.TableWidth(rows) > width && !partitioned(all) {
		a.Paint(a.Out).TableUnder(a.Out, 2, wide.narrow())
	} else {
		a.Table(rows)
	}
	for _, s := range all {
		for _, w := range s.Warnings {
			a.Warning("%s: %s", s.Queue, w)
		}
	}
}
