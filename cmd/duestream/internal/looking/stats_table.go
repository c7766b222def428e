package looking

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
)

// hasPartitionRows reports whether the table has rows for partitions. Such rows need all columns.
func hasPartitionRows(all []admin.QueueStats) bool {
	return slices.ContainsFunc(all, func(s admin.QueueStats) bool { return len(s.ByPartition) > 0 })
}

// statsRow holds the cells of a queue, a group or a partition. A cell that does not apply is empty.
type statsRow struct {
	name                            string
	isGroup                         bool
	scheduled, overdue, next, ready string
	lag, unread, pending, held      string
	retrying, dead                  string
	memory                          string
}

type statsTable []statsRow

// wide returns the table with a column for each figure.
func (t statsTable) wide() [][]string {
	rows := [][]string{{"QUEUE / GROUP", "SCHEDULED", "OVERDUE", "NEXT DUE", "READY", "LAG", "UNREAD", "PENDING", "HELD",
		"RETRYING", "DEAD", "MEMORY"}}
	for _, r := range t {
		rows = append(rows, []string{r.name, r.scheduled, r.overdue, r.next, r.ready, r.lag, r.unread, r.pending, r.held,
			r.retrying, r.dead, r.memory})
	}
	return rows
}

// narrow returns the table for narrow terminals. Rows of groups have columns of their own. A row that has figures of
// queues and groups, like the sum of all queues, becomes two rows.
func (t statsTable) narrow() [][]string {
	rows := [][]string{{"QUEUE", "SCHEDULED", "OVERDUE", "NEXT DUE", "READY", "DEAD", "MEMORY"},
		{"  GROUP", "LAG", "UNREAD", "PENDING", "HELD", "DEAD", "RETRYING"}}
	for _, r := range t {
		groupName, groupDead := r.name, r.dead
		if !r.isGroup {
			rows = append(rows, []string{r.name, r.scheduled, r.overdue, r.next, r.ready, r.dead, r.memory})
			groupName, groupDead = "  all groups", "" // the dead letters are in the row of the queue
		}
		if r.lag != "" {
			rows = append(rows, []string{groupName, r.lag, r.unread, r.pending, r.held, groupDead, r.retrying})
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
				name: "  " + human.OneLine(g.Name, 40), isGroup: true,
				lag: human.Estimate(g.Lag, g.LagApprox), unread: unread,
				pending: human.Estimate(g.Pending, false), held: held,
				retrying: human.Estimate(g.Retrying, g.RetryingApprox), dead: human.Estimate(g.Dead, g.DeadApprox),
			})
		}
		for _, p := range s.ByPartition {
			partitionMemory := "-"
			if p.Memory != nil {
				partitionMemory = human.Bytes(*p.Memory)
			}
			rows = append(rows, statsRow{
				name: "  partition " + strconv.Itoa(p.Partition), scheduled: human.Estimate(p.Scheduled, false),
				overdue: human.Estimate(p.Overdue, false),
				ready:   human.Estimate(p.Ready, p.ReadyApprox), pending: human.Estimate(p.Pending, false),
				dead: human.Estimate(p.Dead, false), memory: partitionMemory,
			})
		}
	}
	if len(all) > 1 {
		sum := sumOf(all)
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

// sumOf adds up the stats of queues. The sum has one group, which adds up all groups.
func sumOf(all []admin.QueueStats) (sum admin.QueueStats) {
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

// memory formats the memory of all keys of a queue, or returns "-" if it is not known.
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
