package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// partitionReader reads the state of partitions that the registry does not count.
type partitionReader struct {
	client rueidis.Client
	prefix string
}

// GrownTo returns how many partitions a queue has. If the registry has lost the count, GrownTo returns the number of
// partitions that a growth has prepared; bridges register that count again. It takes several round trips.
func GrownTo(ctx context.Context, c rueidis.Client, prefix, queue string) (int, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return 0, err
	}
	counts, err := lua.ReadCounts(ctx, c, lua.NewGlobals(prefix), queue)
	if err != nil {
		return 0, err
	}
	return partitionReader{c, prefix}.grownTo(ctx, queue, counts.Latest())
}

// grownTo returns how many partitions a growth has prepared; known is the count in the registry. Two rules show that a
// count may be registered again:
//
//   - A growth gives each new partition the settings and every group of the queue before it registers the count. So a
//     partition with all of them may be registered, if every partition before it may.
//   - A partition with a group, and with entries or dead letters, was registered before, because only a bridge brings
//     entries there. So it and all partitions before it may be registered. It may lack groups and settings that
//     partition 0 got later by plain commands, and the doctor reports those. If it were not registered, its messages
//     would be stuck.
func (r partitionReader) grownTo(ctx context.Context, queue string, known int) (int, error) {
	if known >= lua.MaxPartitions {
		return known, nil
	}
	next, err := r.services(ctx, queue, known, known+1) // mostly there is no further partition, and one look is enough
	if err != nil || len(next[0].groups) == 0 {
		return known, err
	}
	first, err := r.services(ctx, queue, 0, 1)
	if err != nil {
		return known, err
	}
	others, err := r.services(ctx, queue, known, lua.MaxPartitions)
	if err != nil {
		return known, err
	}
	n := 0
	for i, other := range others {
		isPrepared := i == n && other.covers(first[0])
		if isPrepared || other.inService() {
			n = i + 1
		}
	}
	return known + n, nil
}

// service is the part of a partition's state that shows whether it is served, or was.
type service struct {
	groups           []view.GroupInfo
	policy           map[string]string
	entries, letters int64
}

// inService reports whether the partition is or was served by a bridge and by workers.
func (s service) inService() bool { return len(s.groups) > 0 && s.entries+s.letters > 0 }

// hasTrace reports whether a growth prepared the partition, or a deletion left it. Producers write neither groups nor
// settings.
func (s service) hasTrace() bool { return len(s.groups) > 0 || len(s.policy) > 0 }

// isHeld reports whether the policy holds all messages back.
func (s service) isHeld() bool { return s.policy["held"] == "1" }

// covers reports whether the partition has groups, all groups of another partition, and the same settings.
func (s service) covers(other service) bool {
	return len(s.groups) > 0 && maps.Equal(s.policy, other.policy) && s.hasGroups(other)
}

// hasGroups reports whether the partition has all groups of another one.
func (s service) hasGroups(other service) bool {
	return !slices.ContainsFunc(other.groups, func(wanted view.GroupInfo) bool {
		return !slices.ContainsFunc(s.groups, func(group view.GroupInfo) bool { return group.Name == wanted.Name })
	})
}

// services reads the service of the partitions in [from, to). One round trip.
func (r partitionReader) services(ctx context.Context, queue string, from, to int) ([]service, error) {
	found := make([]service, to-from)
	questions := make([][]view.Question, to-from)
	for i := range found {
		one, k, b := &found[i], lua.NewKeys(r.prefix, lua.PartitionName(queue, from+i)), r.client.B()
		questions[i] = []view.Question{
			view.GroupsOf(r.client, k.Stream, &one.groups),
			view.Into(b.Hgetall().Key(k.Policy).Build(), &one.policy, rueidis.RedisResult.AsStrMap),
			view.Number(b.Xlen().Key(k.Stream).Build(), &one.entries),
			view.Number(b.Xlen().Key(k.Dead).Build(), &one.letters),
		}
	}
	for _, err := range view.AskEach(ctx, r.client, questions...) {
		if err != nil && !errors.Is(err, lua.ErrWrongType) {
			return nil, err
		}
	}
	return found, nil
}
