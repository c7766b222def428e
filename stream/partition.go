package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrShrink: the requested number of partitions is below the current one. Any partition may hold messages, and
// producers may use it.
var ErrShrink = errors.New("a queue never shrinks")

// Partitions returns every partition count that a queue ever had; the greatest count is in force. It takes one round
// trip.
func Partitions(ctx context.Context, c rueidis.Client, prefix, queue string) (lua.Counts, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return nil, err
	}
	return view.ReadCounts(ctx, c, prefix, queue)
}

// Grow gives a queue n partitions, and returns all counts that it ever had. First it copies the policy of partition 0
// and every group of the old partitions to each new partition. The groups begin at entry ID 0 there. Then it publishes
// the count, so that producers use the new partitions. Finally it copies policy and groups once more, in case they
// changed meanwhile. It destroys groups that a failed try left in unpublished partitions and that the queue does not
// have. With the current count it only repairs: repeat it after a failure. It is safe under load, and beside other
// calls of Grow, WritePolicy and EnsureGroup. It does not check for messages with a key, whose order a growth breaks:
// see CheckKeys.
//
// lua.ErrInvalid: n is not 1 to 256. ErrShrink: n is below the current count. progress, unless nil, is called after
// each step. Grow takes about ten round trips per partition, several of them concurrent. It works on a full server.
func Grow(ctx context.Context, c rueidis.Client, prefix, queue string, n int,
	progress func(done, total int)) (lua.Counts, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckPartitions(n)); err != nil {
		return nil, err
	}
	counts, err := view.ReadCounts(ctx, c, prefix, queue)
	if err != nil {
		return nil, err
	}
	if n < counts.Latest() {
		return counts, fmt.Errorf("%s has %d partitions, and cannot have %d: %w", queue, counts.Latest(), n, ErrShrink)
	}
	s := partitionSync{c: c, prefix: prefix, queue: queue, least: n}
	if progress != nil {
		s.progress = progress
		s.total = 4 * n // for each partition: policy and groups, before and after the count is published
	}
	fail := func(err error) (lua.Counts, error) {
		return counts, fmt.Errorf("grow %s to %d partitions: %w", queue, n, err)
	}
	if err := s.dropLeftovers(ctx); err != nil {
		return fail(err)
	}
	if err := s.copyAll(ctx); err != nil {
		return fail(err)
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	_, err = lua.RegisterCounts(call, c, lua.NewGlobals(prefix), map[string]lua.Counts{queue: counts.With(n)})
	cancel()
	if err != nil {
		return fail(err)
	}
	if err := s.copyAll(ctx); err != nil {
		return fail(err)
	}
	return view.ReadCounts(ctx, c, prefix, queue)
}

// partitionSync copies the settings and groups of a queue to all of its partitions.
type partitionSync struct {
	c             rueidis.Client
	prefix, queue string
	least         int // least number of partitions, even if the registry has fewer

	progress func(done, total int) // nil: progress is not reported
	total    int                   // steps
	mu       sync.Mutex
	done     int
}

// copyAll copies the groups before the policy. A deletion leaves the setting held in the policy of a removed partition,
// so that no message becomes ready there. The copy of the queue's policy replaces this setting, and then the partition
// must have all groups.
func (s *partitionSync) copyAll(ctx context.Context) error {
	if err := s.copyGroups(ctx); err != nil {
		return err
	}
	return s.copyPolicy(ctx)
}

// stepDone reports the progress after a step.
func (s *partitionSync) stepDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	if s.progress != nil {
		s.progress(min(s.done, s.total), s.total)
	}
}

// names reads the counts and returns the names of all partitions.
func (s *partitionSync) names(ctx context.Context) ([]string, error) {
	counts, err := view.ReadCounts(ctx, s.c, s.prefix, s.queue)
	if err != nil {
		return nil, err
	}
	return counts.With(max(1, s.least)).Names(s.queue), nil
}

// copyPolicy copies the policy of partition 0 to all partitions, until the reads of partition 0 before and after a copy
// agree. If several callers copy at the same time, the last caller that writes a partition then reads partition 0, so
// no old value stays:
//
//  1. A reads partition 0; B changes it, and copies it to partition 1; A writes its old copy to partition 1.
//  2. A reads partition 0 again, sees B's change, and copies it.
func (s *partitionSync) copyPolicy(ctx context.Context) error {
	var copied map[string]string // the policy of the last copy
	for copies := 0; ; {         // copies is the number of partitions that have the copy
		names, err := s.names(ctx)
		if err != nil || len(names) == 1 {
			return err
		}
		own, err := s.readPolicy(ctx, s.queue)
		if err != nil {
			return err
		}
		if copies == len(names) && maps.Equal(own, copied) {
			return nil
		}
		err = view.EachPartition(names, func(i int, name string) error {
			defer s.stepDone()
			if i == 0 {
				return nil
			}
			return s.writePolicy(ctx, name, own)
		})
		if err != nil {
			return err
		}
		copied, copies = own, len(names)
	}
}

func (s *partitionSync) readPolicy(ctx context.Context, name string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	key := lua.NewKeys(s.prefix, name).Policy
	fields, err := s.c.Do(ctx, s.c.B().Hgetall().Key(key).Build()).AsStrMap()
	return fields, lua.Classify("HGETALL "+key, err)
}

// writePolicy makes the policy of one partition equal to wanted.
func (s *partitionSync) writePolicy(ctx context.Context, name string, wanted map[string]string) error {
	present, err := s.readPolicy(ctx, name)
	if err != nil || maps.Equal(present, wanted) {
		return err
	}
	var values []lua.FieldValue
	for _, field := range slices.Sorted(maps.Keys(wanted)) {
		values = append(values, lua.FieldValue{Field: field, Value: wanted[field]})
	}
	for _, field := range slices.Sorted(maps.Keys(present)) {
		if _, ok := wanted[field]; !ok {
			values = append(values, lua.FieldValue{Field: field}) // an empty value clears the field
		}
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	keys := lua.NewKeys(s.prefix, name)
	return lua.Configure(ctx, s.c, keys.Policy, keys.Wake, values)
}

// dropHistories deletes the histories of all partitions. The caller has switched the history off before, so that
// nothing writes them again.
func (s *partitionSync) dropHistories(ctx context.Context) error {
	names, err := s.names(ctx)
	for _, name := range names {
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		err = errors.Join(err, lua.DropHistory(call, s.c, lua.NewKeys(s.prefix, name)))
		cancel()
	}
	return err
}

// dropLeftovers destroys groups that only partitions beyond the count have. A failed growth created such a group, and
// the group was deleted from the queue since. Without dropLeftovers, copyAll would copy the group back to all
// partitions. lua.DropGroups spares a partition with ready or pending entries: such a partition was published once, and
// the registry lost the count.
//
// dropLeftovers reads the partitions beyond the count before the others, because EnsureGroup creates a group in
// partition 0 first. So a group that is being created, and is found beyond the count, is found in partition 0 as well.
func (s *partitionSync) dropLeftovers(ctx context.Context) error {
	counts, err := view.ReadCounts(ctx, s.c, s.prefix, s.queue)
	if err != nil || counts.Latest() >= s.least {
		return err
	}
	known := counts.Latest()
	beyond := counts.With(s.least).Names(s.queue)[known:]
	groupsBeyond, err := s.readGroups(ctx, beyond)
	if err != nil || len(slices.Concat(groupsBeyond...)) == 0 {
		return err
	}
	if counts, err = view.ReadCounts(ctx, s.c, s.prefix, s.queue); err != nil {
		return err
	}
	groups, err := s.readGroups(ctx, counts.Names(s.queue))
	if err != nil {
		return err
	}
	queueGroups := slices.Concat(groups...)
	return view.EachPartition(beyond, func(i int, name string) error {
		if known+i < counts.Latest() { // another growth has published the partition in between
			return nil
		}
		leftovers := slices.DeleteFunc(groupsBeyond[i], func(group string) bool {
			return slices.Contains(queueGroups, group)
		})
		if len(leftovers) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, err := lua.DropGroups(ctx, s.c, lua.NewKeys(s.prefix, name), leftovers)
		return err
	})
}

// readGroups returns the groups of each partition.
func (s *partitionSync) readGroups(ctx context.Context, names []string) ([][]string, error) {
	groups := make([][]string, len(names))
	err := view.EachPartition(names, func(i int, name string) error {
		stream, err := view.ReadStream(ctx, s.c, lua.NewKeys(s.prefix, name).Stream)
		groups[i] = stream.Names()
		return err
	})
	return groups, err
}

// copyGroups creates the groups of every partition in all partitions.
func (s *partitionSync) copyGroups(ctx context.Context) error {
	names, err := s.names(ctx)
	if err != nil || len(names) == 1 {
		return err
	}
	groups, err := s.readGroups(ctx, names)
	if err != nil {
		return err
	}
	all := slices.Concat(groups...)
	slices.Sort(all)
	all = slices.Compact(all)
	return view.EachPartition(names, func(i int, name string) error {
		defer s.stepDone()
		for _, group := range all {
			if slices.Contains(groups[i], group) {
				continue
			}
			if _, err := ensureGroup(ctx, s.c, s.prefix, name, group); err != nil {
				return err
			}
		}
		return nil
	})
}
