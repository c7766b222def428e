// Package looking has the commands that show what queues hold, and what is wrong with them.
package looking

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// partitioned reports whether partitions have lines of their own. Such lines need all columns.
func partitioned(all []admin.QueueStats) bool {
	return slices.ContainsFunc(all, func(s admin.QueueStats) bool { return len(s.ByPartition) > 0 })
}

// statsRow holds the cells of a queue, a group or a partition. A cell that does not apply is empty.
type statsRow struct {
	name                            string
	group                           bool
	scheduled, overdue, next, ready string
	lag, unread, pending, held      string
	retrying, dead                  string
	memory                          string
}

type statsTable []statsRow

// merged returns the wide table, with a column for each figure.
func (t statsTable) merged() [][]string {
	rows := [][]string{{"QUEUE / GROUP", "SCHEDULED", "OVERDUE", "NEXT DUE", "READY", "LAG", "UNREAD", "PENDING", "HELD",
		"RETRYING", "DEAD", "MEMORY"}}
	for _, r := range t {
		rows = append(rows, []string{r.name, r.scheduled, r.overdue, r.next, r.ready, r.lag, r.unread, r.pending, r.held,
			r.retrying, r.dead, r.memory})
	}
	return rows
}

// narrow returns the table for narrow terminals: each queue has a second line for its groups, with columns of its
// own.
func (t statsTable) narrow() [][]string {
	rows := [][]string{{"QUEUE", "SCHEDULED", "OVERDUE", "NEXT DUE", "READY", "DEAD", "MEMORY"},
		{"  GROUP", "LAG", "UNREAD", "PENDING", "HELD", "DEAD", "RETRYING"}}
	for _, r := range t {
		group := []string{r.name, r.lag, r.unread, r.pending, r.held, r.dead, r.retrying}
		if !r.group {
			rows = append(rows, []string{r.name, r.scheduled, r.overdue, r.next, r.ready, r.dead, r.memory})
			group[0], group[5] = "  all groups", ""
		}
		if r.lag != "" {
			rows = append(rows, group)
		}
	}
	return rows
}

func statsRows(all []admin.QueueStats, now time.Time) (rows statsTable) {
	for _, s := range all {
		name := s.Queue
		if s.Held {
			name += " (paused)"
		}
		if s.HeldWorkers {
			name += " (workers paused)"
		}
		if s.Rate != "" {
			name += " (" + string(s.Rate) + ")"
		}
		if s.ReadyLimit > 0 {
			name += " (ready limit " + strconv.Itoa(s.ReadyLimit) + ")"
		}
		if s.WaitForKey > 0 {
			name += " (" + human.Thousands(s.WaitForKey) + " wait for their keys)"
		}
		if s.Partitions > 1 {
			name += " (" + human.Counted(s.Partitions, "partition") + ")"
		}
		rows = append(rows, queueRow(name, s, now))
		for _, g := range s.Groups {
			unread, held := "-", "-"
			if g.Waiting != nil {
				unread = human.Short(time.Duration(*g.Waiting))
			}
			if g.OldestHeld != nil {
				held = human.Short(time.Duration(g.OldestHeld.Held))
			}
			rows = append(rows, statsRow{
				name: "  " + human.OneLine(g.Name, 40), group: true, lag: human.Estimate(g.Lag, g.LagApprox), unread: unread,
				pending: human.Estimate(g.Pending, false), held: held,
				retrying: human.Estimate(g.Retrying, g.RetryingApprox), dead: human.Estimate(g.Dead, g.DeadApprox),
			})
		}
		for _, p := range s.ByPartition {
			used := map[string]int64(nil)
			if p.Memory != nil {
				used = map[string]int64{"all": *p.Memory}
			}
			rows = append(rows, statsRow{
				name: "  partition " + strconv.Itoa(p.Partition), scheduled: human.Estimate(p.Scheduled, false),
				overdue: human.Estimate(p.Overdue, false),
				ready:   human.Estimate(p.Ready, p.ReadyApprox), pending: human.Estimate(p.Pending, false),
				dead: human.Estimate(p.Dead, false), memory: memory(used),
			})
		}
	}
	if len(all) > 1 {
		sum := total(all)
		row := queueRow(fmt.Sprintf("all %d queues", len(all)), sum, now)
		g := sum.Groups[0]
		row.lag, row.pending = human.Estimate(g.Lag, g.LagApprox), human.Estimate(g.Pending, false)
		row.retrying = human.Estimate(g.Retrying, g.RetryingApprox)
		rows = append(rows, row)
	}
	return rows
}

func queueRow(name string, s admin.QueueStats, now time.Time) statsRow {
	next := "-"
	if !s.NextDue.IsZero() {
		next = human.Relative(s.NextDue, now)
	}
	return statsRow{
		name: name, scheduled: human.Estimate(s.Scheduled, false), overdue: human.Estimate(s.Overdue, false), next: next,
		ready: human.Estimate(s.Ready, s.ReadyApprox),
		dead:  human.Estimate(s.Dead, false), memory: memory(s.Memory),
	}
}

// total adds up queues. All their groups become one group.
func total(all []admin.QueueStats) (sum admin.QueueStats) {
	var g admin.GroupStats
	for _, s := range all {
		sum.Scheduled += s.Scheduled
		sum.Overdue += s.Overdue
		if !s.NextDue.IsZero() && (sum.NextDue.IsZero() || s.NextDue.Before(sum.NextDue)) {
			sum.NextDue = s.NextDue
		}
		sum.Ready += s.Ready
		sum.ReadyApprox = sum.ReadyApprox || s.ReadyApprox
		sum.Dead += s.Dead
		for key, n := range s.Memory {
			if sum.Memory == nil {
				sum.Memory = map[string]int64{}
			}
			sum.Memory[key] += n
		}
		for _, one := range s.Groups {
			g.Lag += one.Lag
			g.LagApprox = g.LagApprox || one.LagApprox
			g.Pending += one.Pending
			g.Retrying += one.Retrying
			g.RetryingApprox = g.RetryingApprox || one.RetryingApprox
		}
	}
	sum.Groups = []admin.GroupStats{g}
	return sum
}

// memory returns the bytes of all keys of a queue as text, or "-" if they are not known.
func memory(keys map[string]int64) string {
	if keys == nil {
		return "-"
	}
	var sum int64
	for _, n := range keys {
		sum += n
	}
	return human.Bytes(sum)
}
