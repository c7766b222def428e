package inspect

import (
	"fmt"
	"strconv"
	"strings"
)

// comparePartitions returns warnings for partitions that are not served like the others.
func comparePartitions(queue string, parts []*partition, groups []*groupFigures) (warnings []string) {
	mend := fmt.Sprintf("mend it with `duestream queue partitions %s %d`", queue, len(parts))
	say := func(partitions []string, format string, args ...any) {
		if len(partitions) > 0 {
			warnings = append(warnings, partitionList(partitions)+": "+fmt.Sprintf(format, args...))
		}
	}
	missing, unread, policies := map[string][]string{}, map[string][]string{}, []string(nil)
	for i, p := range parts {
		number, differs := strconv.Itoa(i), p.policies[""] != parts[0].policies[""]
		for _, g := range groups {
			one := p.group(g.name)
			if one == nil {
				missing[g.name] = append(missing[g.name], number)
				continue
			}
			if len(g.consumers) > 0 && len(one.consumers) == 0 && one.lag > 0 {
				unread[g.name] = append(unread[g.name], number)
			}
			differs = differs || one.policy != g.policy
		}
		if differs {
			policies = append(policies, number)
		}
	}
	say(policies, "another policy than partition 0: %s", mend)
	for _, g := range groups {
		say(missing[g.name], "group %q does not exist there, and gets nothing of what becomes ready there: %s", g.name, mend)
		if allBusy(parts, g) { // a consumer is created by its first read, and a worker reads where it has a free slot
			say(unread[g.name], "no consumer of group %q has read there yet, and entries wait for it: "+
				"all that are alive hold entries of other partitions, and may have no free slot", g.name)
		} else {
			say(unread[g.name], "group %q has consumers, but none there, and entries wait for it", g.name)
		}
	}
	return warnings
}

// allBusy reports whether a group has live consumers, and each of them holds entries in some partition.
func allBusy(parts []*partition, g *groupFigures) bool {
	held := map[string]int64{}
	for _, p := range parts {
		for i, replies := range p.details {
			if p.infos[i].Name != g.name {
				continue
			}
			for _, c := range replies.consumers {
				held[c.Name] += c.Pending
			}
		}
	}
	busy := false
	for name, alive := range g.consumers {
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
