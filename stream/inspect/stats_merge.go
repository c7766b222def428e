package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// PartitionStats is what one partition of a queue holds: see QueueStats.
type PartitionStats struct {
	Partition   int    `json:"partition"`
	Scheduled   int64  `json:"scheduled"`
	Overdue     int64  `json:"overdue"`
	Ready       int64  `json:"ready"`
	ReadyApprox bool   `json:"ready_approx,omitempty"`
	Entries     int64  `json:"entries"`
	Pending     int64  `json:"pending"` // of all groups
	Dead        int64  `json:"dead"`
	Memory      *int64 `json:"memory_bytes,omitempty"` // absent where the server does not say
}

// mergePartitions returns what the partitions of a queue hold together.
func mergePartitions(queue string, parts []inspection) inspection {
	whole := inspection{stats: QueueStats{Queue: queue, Groups: []GroupStats{}}, consumers: map[string]map[string]bool{}}
	st := &whole.stats
	st.Held, st.Policy = parts[0].stats.Held, parts[0].stats.Policy
	groups := map[string]*GroupStats{}
	warnings := map[string]bool{}
	for i := range parts {
		part := &parts[i].stats
		st.Scheduled += part.Scheduled
		st.Overdue += part.Overdue
		st.OldestOverdue = max(st.OldestOverdue, part.OldestOverdue)
		if !part.NextDue.IsZero() && (st.NextDue.IsZero() || part.NextDue.Before(st.NextDue)) {
			st.NextDue = part.NextDue
		}
		st.Ready += part.Ready
		st.ReadyApprox = st.ReadyApprox || part.ReadyApprox
		st.Entries += part.Entries
		st.Dead += part.Dead
		st.DedupWindows += part.DedupWindows
		whole.looksLikeSeconds += parts[i].looksLikeSeconds
		one := PartitionStats{
			Partition: i, Scheduled: part.Scheduled, Overdue: part.Overdue, Ready: part.Ready, ReadyApprox: part.ReadyApprox,
			Entries: part.Entries, Dead: part.Dead,
		}
		for name, n := range part.Memory {
			if st.Memory == nil {
				st.Memory = map[string]int64{}
			}
			st.Memory[name] += n
			if one.Memory == nil {
				one.Memory = new(int64)
			}
			*one.Memory += n
		}
		for _, g := range part.Groups {
			one.Pending += g.Pending
			whole.mergeGroup(groups, i, g, parts[i].consumers[g.Name])
		}
		st.ByPartition = append(st.ByPartition, one)
		for _, w := range part.Warnings {
			if !warnings[w] {
				warnings[w] = true
				st.Warnings = append(st.Warnings, w)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := *groups[name]
		g.Consumers = int64(len(whole.consumers[name]))
		st.Groups = append(st.Groups, g)
	}
	whole.compare(parts)
	return whole
}

func (s *inspection) mergeGroup(groups map[string]*GroupStats, partition int, g GroupStats, consumers map[string]bool) {
	if g.OldestPending != nil {
		g.OldestPending.Partition = partition
	}
	sum := groups[g.Name]
	if sum == nil {
		sum = &g
		groups[g.Name] = sum
		s.consumers[g.Name] = map[string]bool{}
	} else {
		sum.Lag += g.Lag
		sum.LagApprox = sum.LagApprox || g.LagApprox
		sum.Pending += g.Pending
		if g.OldestPending != nil && (sum.OldestPending == nil || comparePending(*g.OldestPending, *sum.OldestPending) < 0) {
			sum.OldestPending = g.OldestPending
		}
		sum.Retrying += g.Retrying
		sum.RetryingApprox = sum.RetryingApprox || g.RetryingApprox
		sum.Dead += g.Dead
		sum.DeadApprox = sum.DeadApprox || g.DeadApprox
	}
	maps.Copy(s.consumers[g.Name], consumers)
}

// compare adds warnings for partitions that are not served as the others are.
func (s *inspection) compare(parts []inspection) {
	st := &s.stats
	mend := fmt.Sprintf("mend it with `duestream queue partitions %s %d`", st.Queue, len(parts))
	var policies []int
	missing, unread := map[string][]int{}, map[string][]int{}
	for i := range parts {
		differs := parts[i].stats.Policy != st.Policy
		for _, g := range st.Groups {
			at := slices.IndexFunc(parts[i].stats.Groups, func(one GroupStats) bool { return one.Name == g.Name })
			switch {
			case at < 0:
				missing[g.Name] = append(missing[g.Name], i)
				continue
			case g.Consumers > 0 && len(parts[i].consumers[g.Name]) == 0 && parts[i].stats.Groups[at].Lag > 0:
				unread[g.Name] = append(unread[g.Name], i)
			}
			differs = differs || parts[i].stats.Groups[at].Policy != g.Policy
		}
		if differs {
			policies = append(policies, i)
		}
	}
	say := func(partitions []int, format string, args ...any) {
		if len(partitions) > 0 {
			st.Warnings = append(st.Warnings, partitionList(partitions)+": "+fmt.Sprintf(format, args...))
		}
	}
	say(policies, "another policy than partition 0: %s", mend)
	for _, g := range st.Groups {
		say(missing[g.Name], "group %q does not exist there, and gets nothing of what becomes ready there: %s", g.Name, mend)
		say(unread[g.Name], "group %q has consumers, but none there, and entries wait for it", g.Name)
	}
}

// partitionList names partitions: "partition 3", "partitions 1, 2, 5".
func partitionList(partitions []int) string {
	if len(partitions) == 1 {
		return fmt.Sprintf("partition %d", partitions[0])
	}
	texts := make([]string, len(partitions))
	for i, p := range partitions {
		texts[i] = strconv.Itoa(p)
	}
	return "partitions " + strings.Join(texts, ", ")
}
