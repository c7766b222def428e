package sizes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// PartitionState is the state of one partition for metrics. It lacks Late, NewestDead, WaitForKey and LooksSeconds.
type PartitionState struct {
	Queue     string
	Partition int
	Err       error // lua.ErrWrongType: a key has another type than it should; the other fields are unknown
	Sizes
	Groups []GroupState

	// Letters counts the newest 10,000 dead letters by group and reason; Unread is the number of further ones. If
	// letters disappear and there are more than 64 KiB of them, the oldest are assumed to be gone, and all are read
	// again once a minute.
	Letters map[LetterKind]int64
	Unread  int64
}

// GroupState is the state of one group in one partition. It lacks the timeouts of the policy. Retrying is -1 if the
// user may not count them.
type GroupState struct {
	GroupSizes
	Brief bool // only Lag and Pending are known, because the group is not among the first 64, by name

	// OldestAge is the time since the oldest pending entry became ready.
	OldestAge time.Duration

	// IdleConsumers is the number of consumers whose last read is more than a minute ago.
	IdleConsumers int64
}

// StateReader reads the state of partitions at intervals: the figures of a Watcher, and exact ones where a Watcher's
// bounds are too narrow for sums. It keeps the counts of dead letters, and reads only new ones. Not safe for concurrent
// use.
type StateReader struct {
	c      rueidis.Client
	prefix string
	caches map[string]*partitionCache // by partition
	budget budget                     // of one Read
}

// NewStateReader returns a reader for the partitions of a prefix.
func NewStateReader(c rueidis.Client, prefix string) *StateReader {
	return &StateReader{c: c, prefix: prefix, caches: map[string]*partitionCache{},
		budget: budget{letterBytes: 16 << 20, unreadBytes: 4 << 20, lagCounts: 16, scans: 20}}
}

// Read returns the states of partitions, given by name. It fails if a partition cannot be read; lua.ErrWrongType alone
// is not an error of Read, but stands in the partition's state. Read sends about ten commands per partition, two per
// group and one per existing key, in two round trips per 64 partitions. A third round trip reads the oldest undelivered
// entry of groups with a backlog. Long schedules with retries, new dead letters, and lags that the server does not know
// take further round trips.
func (s *StateReader) Read(ctx context.Context, names []string) ([]PartitionState, error) {
	if len(names) == 0 {
		clear(s.caches)
		return nil, nil
	}
	now, err := serverTime(ctx, s.c)
	if err != nil {
		return nil, fmt.Errorf("read the state of queues: %w", err)
	}
	parts := make([]*partition, len(names))
	for i, name := range names {
		parts[i] = newPartition(s.prefix, name)
	}
	r := reader{c: s.c, prefix: s.prefix, depth: scrape, now: now, budget: s.budget, caches: s.caches}
	r.read(ctx, parts)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the state of queues: %w", err)
	}
	states := make([]PartitionState, len(parts))
	for i, p := range parts {
		if p.err != nil && !errors.Is(p.err, lua.ErrWrongType) {
			return nil, fmt.Errorf("read the state of queues: %s: %w", p.name, p.err)
		}
		states[i] = p.state(now)
	}
	for name := range s.caches {
		if !slices.Contains(names, name) {
			delete(s.caches, name)
		}
	}
	return states, nil
}

// serverTime returns the time of the server, or an error if it does not answer soon.
func serverTime(ctx context.Context, c rueidis.Client) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	return view.ServerTime(ctx, c)
}

// state returns the state of a partition that was read. now is the time of the read.
func (p *partition) state(now time.Time) PartitionState {
	queue, index, _ := lua.SplitPartition(p.name)
	if p.err != nil {
		return PartitionState{Queue: queue, Partition: index, Err: p.err}
	}
	s := PartitionState{Queue: queue, Partition: index, Sizes: p.Sizes, Letters: p.letterKinds, Unread: p.moreLetters}
	for _, g := range p.groups {
		one := GroupState{GroupSizes: *g, IdleConsumers: g.Consumers - g.alive}
		if g.OldestEntry != nil {
			one.OldestAge = max(0, now.Sub(g.OldestEntry.Since))
		}
		s.Groups = append(s.Groups, one)
	}
	for i := len(p.groups); i < len(p.infos); i++ {
		info, lag := p.infos[i], p.lags[i]
		s.Groups = append(s.Groups, GroupState{Brief: true,
			GroupSizes: GroupSizes{Name: info.Name, Lag: lag.entries, LagApprox: lag.approx, Pending: info.Pending}})
	}
	return s
}
