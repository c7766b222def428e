package sizes

import (
	"cmp"
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream"
)

// QueueStats is the contents of a queue, over all its partitions. It lacks Late. Sizes are in bytes.
type QueueStats struct {
	Queue      string `json:"queue"`
	Partitions int    `json:"partitions"`
	Sizes
	OldestOverdue view.Millis `json:"oldest_overdue_ms"` // Behind, under its name in JSON
	DedupWindows  int64       `json:"dedup_windows"`

	Groups   []GroupStats  `json:"groups"`
	Policy   policy.Policy `json:"policy"` // for groups without settings of their own
	Warnings []string      `json:"warnings,omitempty"`

	ByPartition []PartitionStats `json:"by_partition,omitempty"` // if the queue has several partitions
}

// QueueSizes returns the sizes without the fields that Stats add to them.
func (s QueueStats) QueueSizes() QueueSizes {
	q := QueueSizes{Queue: s.Queue, Partitions: s.Partitions, Sizes: s.Sizes}
	q.Behind = s.OldestOverdue
	for _, g := range s.Groups {
		q.Groups = append(q.Groups, g.sizes())
	}
	return q
}

// PartitionStats is the contents of one partition of a queue: see Sizes.
type PartitionStats struct {
	Partition   int    `json:"partition"`
	Scheduled   int64  `json:"scheduled"`
	Overdue     int64  `json:"overdue"`
	Ready       int64  `json:"ready"`
	ReadyApprox bool   `json:"ready_approx,omitempty"`
	Entries     int64  `json:"entries"`
	Pending     int64  `json:"pending"` // of all groups
	Dead        int64  `json:"dead"`
	Memory      *int64 `json:"memory_bytes,omitempty"` // nil if the server does not tell
}

// GroupStats is the state of one group of a queue.
//
// Lag is counted, because the server's own figure is wrong after entries were deleted out of order. Two counts, from
// the oldest entry and from the newest, go on until one reaches the group's last delivered entry. LagApprox: neither
// count reached that entry within 10,000 entries or 2 MiB; then Lag is the server's figure, or an upper bound if the
// server has none. RetryingApprox: Retrying is extrapolated from the first 50,000 members of the schedule. DeadApprox:
// Dead counts only the newest 10,000 letters or 2 MiB.
type GroupStats struct {
	GroupSizes

	// These figures of GroupSizes have names of their own in JSON.
	OldestPending *PendingEntry `json:"oldest_pending,omitempty"` // OldestEntry
	OldestHeld    *PendingEntry `json:"oldest_held,omitempty"`    // HeldLongest

	Dead       int64 `json:"dead"` // dead letters of the group
	DeadApprox bool  `json:"dead_approx,omitempty"`

	Policy policy.Policy `json:"policy"`
}

// sizes returns the figures of the group, even if the stats were read from JSON.
func (g GroupStats) sizes() GroupSizes {
	f := g.GroupSizes
	f.OldestEntry, f.HeldLongest = g.OldestPending, g.OldestHeld
	if f.OldestIdle == nil && g.OldestPending != nil {
		f.OldestIdle = &g.OldestPending.Idle
	}
	f.Visibility = cmp.Or(f.Visibility, g.Policy.VisibilityTimeout)
	f.HandlerTimeout = cmp.Or(f.HandlerTimeout, g.Policy.HandlerTimeout)
	return f
}

// Stats returns the contents of a queue, over all its partitions. A queue that does not exist is empty, not an error.
// It reads at most 6 MiB per partition, in bounded steps. lua.ErrWrongType: a key has another type; the error names it.
func Stats(ctx context.Context, c rueidis.Client, prefix, queue string) (QueueStats, error) {
	counts, err := stream.Partitions(ctx, c, prefix, queue)
	if err != nil {
		return QueueStats{}, err
	}
	parts := newPartitions(prefix, queue, counts)
	err = view.EachPartition(counts.Names(queue), func(i int, _ string) error {
		return readFully(ctx, c, prefix, parts[i])
	})
	if err != nil {
		return QueueStats{}, fmt.Errorf("stats of %s: %w", queue, err)
	}
	return statsOf(queue, parts), nil
}

// readFully reads one partition for Stats.
func readFully(ctx context.Context, c rueidis.Client, prefix string, p *partition) error {
	now, err := view.ServerTimeOf(ctx, c, p.keys.Due)
	if err != nil {
		return err
	}
	r := reader{c: c, prefix: prefix, depth: full, now: now, caches: map[string]*partitionCache{}}
	if err := r.checkTypes(ctx, p); err != nil {
		return err
	}
	r.read(ctx, []*partition{p})
	if p.err != nil {
		return p.err
	}
	return ctx.Err()
}

func statsOf(queue string, parts []*partition) QueueStats {
	f := sum(parts)
	queuePolicy := parts[0].policies[""]
	s := QueueStats{
		Queue:         queue,
		Partitions:    len(parts),
		Sizes:         f.Sizes,
		OldestOverdue: f.Behind,
		DedupWindows:  f.windows,
		Groups:        []GroupStats{},
		Policy:        queuePolicy,
		Warnings:      warningsOf(parts),
	}
	s.Held = queuePolicy.Held
	for _, g := range f.groups {
		s.Groups = append(s.Groups, GroupStats{GroupSizes: *g, OldestPending: g.OldestEntry, OldestHeld: g.HeldLongest,
			Dead: g.dead, DeadApprox: g.deadApprox, Policy: policyOfGroup(parts, g.Name)})
	}
	if len(parts) > 1 {
		for _, p := range parts {
			s.ByPartition = append(s.ByPartition, p.stats())
		}
		s.Warnings = append(s.Warnings, comparePartitions(queue, parts, f.groups)...)
	}
	return s
}

// policyOfGroup returns the policy of a group in the first partition that has it.
func policyOfGroup(parts []*partition, group string) policy.Policy {
	for _, p := range parts {
		if p.group(group) != nil {
			return p.policies[group]
		}
	}
	return policy.Policy{}
}

func (p *partition) stats() PartitionStats {
	s := PartitionStats{Partition: p.index, Scheduled: p.Scheduled, Overdue: p.Overdue, Ready: p.Ready,
		ReadyApprox: p.ReadyApprox, Entries: p.Entries, Dead: p.Dead}
	for _, g := range p.groups {
		s.Pending += g.Pending
	}
	if len(p.Memory) > 0 {
		bytes := p.MemoryBytes()
		s.Memory = &bytes
	}
	return s
}
