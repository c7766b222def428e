package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// ErrShrink: the requested number of partitions is below the current one. Any partition may hold messages, and
// producers may use it.
var ErrShrink = errors.New("a queue never shrinks")

// Partitions returns every partition count that a queue ever had; the greatest one is in force. One round trip.
func Partitions(ctx context.Context, c rueidis.Client, prefix, queue string) (lua.Counts, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return nil, err
	}
	return view.ReadCounts(ctx, c, prefix, queue)
}

// Grow gives a queue n partitions, and returns all counts that it ever had. It gives each new partition the policy of
// partition 0, and every group of the old ones, at 0; then it publishes the count, and producers may use the partition;
// then it copies policy and groups once more, in case they changed meanwhile. It destroys groups that a failed try left
// in unpublished partitions and that the queue does not have. With the current count it only repairs: repeat it after a
// failure. It is safe under load, and beside other calls of Grow, WritePolicy and EnsureGroup. It does not check for
// messages with a key, whose order a growth breaks: see CheckKeys.
//
// lua.ErrInvalid: n is not 1 to 256. ErrShrink: n is below the current count. progress, unless nil, is called after
// each step. About ten round trips per partition, several of them concurrent; works on a full server.
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
		s.step = progress
		s.total = 4 * n // policy and groups, before and after
	}
	fail := func(err error) (lua.Counts, error) {
		return counts, fmt.Errorf("grow %s to %d partitions: %w", queue, n, err)
	}
	if err := s.dropLeft(ctx); err != nil {
		return fail(err)
	}
	if err := s.all(ctx); err != nil {
		return fail(err)
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	_, err = lua.RegisterCounts(call, c, lua.NewGlobals(prefix), map[string]lua.Counts{queue: counts.With(n)})
	cancel()
	if err != nil {
		return fail(err)
	}
	if err := s.all(ctx); err != nil {
		return fail(err)
	}
	return view.ReadCounts(ctx, c, prefix, queue)
}

// partitionSync copies the settings and groups of a queue to all of its partitions.
type partitionSync struct {
	c             rueidis.Client
	prefix, queue string
	least         int // least number of partitions, also while the registry knows fewer

	step  func(done, total int)
	total int
	mu    sync.Mutex
	done  int
}

// all copies the groups before the policy. A partition that a deletion has removed is held by its own policy. Nothing
// becomes ready in it until it has the queue's policy, and then it has all groups.
func (s *partitionSync) all(ctx context.Context) error {
	if err := s.groups(ctx); err != nil {
		return err
	}
	return s.policy(ctx)
}

func (s *partitionSync) stepped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	if s.step != nil {
		s.step(min(s.done, s.total), s.total)
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

// policy copies the policy of partition 0, until two reads of it around a copy agree. If several callers copy at the
// same time, the last one to write a partition reads partition 0 afterwards, so no old value stays:
//
//  1. A reads partition 0; B changes it, and copies it to partition 1; A writes its old copy to partition 1.
//  2. A reads partition 0 again, sees B's change, and copies it.
func (s *partitionSync) policy(ctx context.Context) error {
	var copied map[string]string
	for reached := 0; ; {
		names, err := s.names(ctx)
		if err != nil || len(names) == 1 {
			return err
		}
		own, err := s.readPolicy(ctx, s.queue)
		if err != nil {
			return err
		}
		if reached == len(names) && maps.Equal(own, copied) {
			return nil
		}
		err = view.EachPartition(names, func(i int, name string) error {
			defer s.stepped()
			if i == 0 {
				return nil
			}
			return s.writePolicy(ctx, name, own)
		})
		if err != nil {
			return err
		}
		copied, reached = own, len(names)
	}
}

func (s *partitionSync) readPolicy(ctx context.Context, name string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	key := lua.NewKeys(s.prefix, name).Policy
	fields, err := s.c.Do(ctx, s.c.B().Hgetall().Key(key).Build()).AsStrMap()
	return fields, lua.Classify("HGETALL "+key, err)
}

// writePolicy makes the policy of one partition equal to that of partition 0.
func (s *partitionSync) writePolicy(ctx context.Context, name string, own map[string]string) error {
	there, err := s.readPolicy(ctx, name)
	if err != nil || maps.Equal(there, own) {
		return err
	}
	var values []lua.FieldValue
	for _, field := range slices.Sorted(maps.Keys(own)) {
		values = append(values, lua.FieldValue{Field: field, Value: own[field]})
	}
	for _, field := range slices.Sorted(maps.Keys(there)) {
		if _, ok := own[field]; !ok {
			values = append(values, lua.FieldValue{Field: field})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	keys := lua.NewKeys(s.prefix, name)
	return lua.Configure(ctx, s.c, keys.Policy, keys.Wake, values)
}

// dropHistories deletes the histories of all partitions. Nothing writes them any more.
func (s *partitionSync) dropHistories(ctx context.Context) error {
	names, err := s.names(ctx)
	for _, name := range names {
		key := lua.NewKeys(s.prefix, name).History
		call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		err = errors.Join(err, lua.Classify("UNLINK "+key, s.c.Do(call, s.c.B().Unlink().Key(key).Build()).Error()))
		cancel()
	}
	return err
}

// dropLeft destroys groups that only partitions beyond the count have. A failed growth left such a group there, and the
// queue's own partitions have lost it since: it must not come back. A partition with entries, also pending ones, keeps
// its groups: it was published once, and the registry lost the count.
//
// EnsureGroup creates a group in partition 0 first. So dropLeft reads the partitions beyond the count first and the
// others afterwards: then it sees a group that is being created.
func (s *partitionSync) dropLeft(ctx context.Context) error {
	counts, err := view.ReadCounts(ctx, s.c, s.prefix, s.queue)
	if err != nil || counts.Latest() >= s.least {
		return err
	}
	known := counts.Latest()
	beyond := counts.With(s.least).Names(s.queue)[known:]
	left, err := s.readGroups(ctx, beyond)
	if err != nil || len(slices.Concat(left...)) == 0 {
		return err
	}
	if counts, err = view.ReadCounts(ctx, s.c, s.prefix, s.queue); err != nil {
		return err
	}
	there, err := s.readGroups(ctx, counts.Names(s.queue))
	if err != nil {
		return err
	}
	own := slices.Concat(there...)
	return view.EachPartition(beyond, func(i int, name string) error {
		if known+i < counts.Latest() { // another growth has published it in between
			return nil
		}
		gone := slices.DeleteFunc(left[i], func(group string) bool { return slices.Contains(own, group) })
		if len(gone) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		_, err := lua.DropGroups(ctx, s.c, lua.NewKeys(s.prefix, name), gone)
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

// groups creates the groups of every partition in all partitions.
func (s *partitionSync) groups(ctx context.Context) error {
	names, err := s.names(ctx)
	if err != nil || len(names) == 1 {
		return err
	}
	there, err := s.readGroups(ctx, names)
	if err != nil {
		return err
	}
	all := slices.Concat(there...)
	slices.Sort(all)
	all = slices.Compact(all)
	return view.EachPartition(names, func(i int, name string) error {
		defer s.stepped()
		for _, group := range all {
			if slices.Contains(there[i], group) {
				continue
			}
			if _, err := ensureGroup(ctx, s.c, s.prefix, name, group); err != nil {
				return err
			}
		}
		return nil
	})
}

func ensureGroup(ctx context.Context, c rueidis.Client, prefix, name, group string) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	return lua.EnsureGroup(ctx, c, lua.NewKeys(prefix, name), group)
}

// EnsureGroup creates a consumer group at the beginning of a queue's streams, in all partitions, unless it exists. The
// group gets every ready message that is still in the streams. After an error it may exist in some partitions: repeat
// it. One round trip per partition, and one to the registry; works on a full server.
func EnsureGroup(ctx context.Context, c rueidis.Client, prefix, queue, group string) (created bool, err error) {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckGroup(group)); err != nil {
		return false, err
	}
	var anywhere atomic.Bool
	create := func(_ int, name string) error {
		created, err := ensureGroup(ctx, c, prefix, name, group)
		if created {
			anywhere.Store(true)
		}
		return err
	}
	// Read the registry after creating the group: a growth that is published later finds the group and copies it.
	if err = create(0, queue); err == nil {
		var counts lua.Counts
		if counts, err = view.ReadCounts(ctx, c, prefix, queue); err == nil && counts.Latest() > 1 {
			err = view.EachPartition(counts.Names(queue)[1:], create)
		}
	}
	if err != nil {
		return false, fmt.Errorf("create group %s/%s: %w", queue, group, err)
	}
	return anywhere.Load(), nil
}
