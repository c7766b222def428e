package sizes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// warningsOf returns the warnings of partitions, each once.
func warningsOf(parts []*partition) (warnings []string) {
	for _, p := range parts {
		for _, warning := range p.warnings {
			if !slices.Contains(warnings, warning) {
				warnings = append(warnings, warning)
			}
		}
	}
	return warnings
}

// comparePartitions returns warnings for partitions that are not served like the others.
func comparePartitions(queue string, parts []*partition, groups []*GroupSizes) (warnings []string) {
	mend := fmt.Sprintf("mend it with `duestream queue partitions %s %d`", queue, len(parts))
	warn := func(partitions []string, format string, args ...any) {
		if len(partitions) > 0 {
			warnings = append(warnings, partitionList(partitions)+": "+fmt.Sprintf(format, args...))
		}
	}
	var differentPolicy []string     // numbers of partitions
	missing := map[string][]string{} // by group, the partitions without it
	unread := map[string][]string{}  // by group, the partitions with entries for it that none of its consumers reads
	for i, p := range parts {
		number := strconv.Itoa(i)
		differs := p.policies[""] != parts[0].policies[""]
		for _, g := range groups {
			inPartition := p.group(g.Name)
			if inPartition == nil {
				missing[g.Name] = append(missing[g.Name], number)
				continue
			}
			if g.Consumers > 0 && inPartition.Consumers == 0 && inPartition.Lag > 0 {
				unread[g.Name] = append(unread[g.Name], number)
			}
			differs = differs || p.policies[g.Name] != policyOfGroup(parts, g.Name)
		}
		if differs {
			differentPolicy = append(differentPolicy, number)
		}
	}
	warn(differentPolicy, "another policy than partition 0: %s", mend)
	for _, g := range groups {
		warn(missing[g.Name], "group %q does not exist there, and gets nothing of what becomes ready there: %s",
			g.Name, mend)
		// The first read of a consumer in a partition creates it there, and a worker reads only when it has a free
		// slot.
		if allBusy(parts, g) {
			warn(unread[g.Name], "no consumer of group %q has read there yet, and entries wait for it: "+
				"all that are alive hold entries of other partitions, and may have no free slot", g.Name)
		} else {
			warn(unread[g.Name], "group %q has consumers, but none there, and entries wait for it", g.Name)
		}
	}
	return warnings
}

// allBusy reports whether a group has live consumers, and each of them holds entries in some partition.
func allBusy(parts []*partition, g *GroupSizes) bool {
	held := map[string]int64{}
	for _, p := range parts {
		for i, replies := range p.details {
			if p.infos[i].Name != g.Name {
				continue
			}
			for _, c := range replies.consumers {
				held[c.Name] += c.Pending
			}
		}
	}
	busy := false
	for name, alive := range g.aliveByName {
		if alive && held[name] == 0 {
			return false
		}
		busy = busy || alive
	}
	return busy
}

// partitionList names partitions: "partition 3", "partitions 1, 2, 5".
func partitionList(numbers []string) string {
	if len(numbers) == 1 {
		return "partition " + numbers[0]
	}
	return "partitions " + strings.Join(numbers, ", ")
}
