package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Bounds of one pass over one partition beyond the count.
const (
	strayMembers = 1000
	strayBytes   = 4 << 20
	strayTime    = time.Second
	removeTries  = 50
	strayRest    = time.Minute // then messages that stayed are retried: those in their places may have been delivered
	droppedTime  = time.Minute // for so long a partition of a deleted queue is watched
)

// ErrOccupied: messages in a partition beyond the registered count cannot be moved, because other messages with the
// same IDs are in the partition in which they belong.
var ErrOccupied = lua.NewHinted("others with the same ID are in the partition that they belong to",
	"compare both with ZSCORE and HGET, and take away the one that is not wanted")

// stray is a partition with scheduled messages that neither the registry knows nor a growth has prepared: some producer
// made up its name, or still knows it from a queue that was deleted. It has no workers, groups or settings. So bridges
// neither drain nor register it: they move its messages to the partitions in which their IDs belong.
type stray struct {
	state   loop.Reporter
	at      int64     // rank at which the next pass continues
	left    int64     // messages that stayed in the last complete pass
	settled bool      // in that pass nothing else was there
	raced   bool      // some messages changed while they were moved
	ended   time.Time // when that pass ended
	watched time.Time // until then it is a stray although it is empty
}

// placed sorts found but unknown partitions into queues with the counts to register, and names of strays.
func (s *Scheduler) placed(ctx context.Context,
	unheard map[string][]int) (publish map[string]lua.Counts, strays []string, err error) {
	publish = map[string]lua.Counts{}
	for queue, partitions := range unheard {
		s.mu.Lock()
		known := s.counts[queue]
		s.mu.Unlock()
		latest := known.Latest()
		if known == nil || slices.Max(partitions) >= latest {
			grown, failed := s.grownTo(ctx, queue, latest)
			if failed != nil {
				err = errors.Join(err, failed)
				continue
			}
			latest = grown
		}
		if known == nil || latest > known.Latest() {
			publish[queue] = known.With(latest)
		}
		for _, i := range partitions {
			if i >= latest {
				strays = append(strays, lua.PartitionName(queue, i))
			}
		}
	}
	return publish, strays, err
}

// grownTo returns how many partitions a growth has prepared, when the registry knows fewer. A growth gives each new
// partition the settings and every group of the queue before it publishes the count. So a partition with both, behind
// only such partitions, may be published again. The same goes for all partitions up to one with a group and with
// entries or dead letters: a bridge brought them there, so that partition was published once. It may lack groups and
// settings that partition 0 got later by plain commands; the doctor reports those. But unpublished, its messages would
// be stuck.
func (s *Scheduler) grownTo(ctx context.Context, queue string, known int) (int, error) {
	if known >= lua.MaxPartitions {
		return known, nil
	}
	first, err := s.served(ctx, queue, known, known+1)
	if err != nil || len(first[0].groups) == 0 {
		return known, err
	}
	own, err := s.served(ctx, queue, 0, 1)
	if err != nil {
		return known, err
	}
	others, err := s.served(ctx, queue, known, lua.MaxPartitions)
	if err != nil {
		return known, err
	}
	n := 0
	for i, o := range others {
		if i == n && o.covers(own[0]) || o.inService() {
			n = i + 1
		}
	}
	return known + n, nil
}

// service is the state of a partition that decides whether it can be served.
type service struct {
	groups []string
	policy map[string]string
	held   int64 // entries and dead letters
}

func (o service) inService() bool { return len(o.groups) > 0 && o.held > 0 }

func (o service) covers(own service) bool {
	return len(o.groups) > 0 && maps.Equal(o.policy, own.policy) && o.hasGroups(own)
}

// hasGroups reports whether a partition has all groups of another one.
func (o service) hasGroups(other service) bool {
	return !slices.ContainsFunc(other.groups, func(group string) bool { return !slices.Contains(o.groups, group) })
}

// served reads the service of the partitions in [from, to).
func (s *Scheduler) served(ctx context.Context, queue string, from, to int) ([]service, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var asks []rueidis.Completed
	for i := from; i < to; i++ {
		k := lua.NewKeys(s.cfg.Prefix, lua.PartitionName(queue, i))
		b := s.cfg.Client.B()
		asks = append(asks, b.XinfoGroups().Key(k.Stream).Build(), b.Hgetall().Key(k.Policy).Build(),
			b.Xlen().Key(k.Stream).Build(), b.Xlen().Key(k.Dead).Build())
	}
	found := make([]service, to-from)
	for i, reply := range s.cfg.Client.DoMulti(ctx, asks...) {
		var err error
		one, n := &found[i/4], int64(0)
		switch i % 4 {
		case 0:
			one.groups, err = groupNames(reply)
		case 1:
			one.policy, err = reply.AsStrMap()
		default:
			n, err = reply.AsInt64()
			one.held += n
		}
		if err = lua.Classify("look at partitions of "+queue, err); err != nil && !errors.Is(err, lua.ErrWrongType) {
			return nil, err
		}
	}
	return found, nil
}

func groupNames(reply rueidis.RedisResult) (names []string, err error) {
	list, err := reply.ToArray()
	if err != nil && strings.Contains(err.Error(), "no such key") {
		return nil, nil
	}
	for _, one := range list {
		fields, err := one.AsMap()
		if err != nil {
			return nil, err
		}
		field := fields["name"]
		name, err := field.ToString()
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, err
}

// foundStrays notes strays, and logs each once.
func (s *Scheduler) foundStrays(names []string) {
	for _, name := range names {
		if s.strays[name] == nil {
			s.strays[name] = s.newStray(name)
			s.strays[name].state.Log.Warn("moving messages out of a partition that the queue does not have")
		}
	}
}

func (s *Scheduler) newStray(name string) *stray {
	return &stray{state: loop.Reporter{Log: s.cfg.Logger.With(slog.String("queue", name)),
		Activity: "move messages out of a partition that the queue does not have", Quiet: s.quiet}}
}

// watchDropped notes partitions of deleted queues as strays. Producers that know the old count put messages into them
// for some seconds. A scan of all keys would find these messages as well, but on a large server only after hours.
func (s *Scheduler) watchDropped(names []string) {
	for _, name := range names {
		if s.strays[name] == nil {
			s.strays[name] = s.newStray(name)
		}
		s.strays[name].watched = time.Now().Add(droppedTime)
	}
}

// moveStrays makes one bounded pass over the strays. The order is random, so that each gets its turn.
func (s *Scheduler) moveStrays(ctx context.Context) {
	until := time.Now().Add(strayTime)
	for name, st := range s.strays {
		if ctx.Err() != nil || time.Now().After(until) {
			return
		}
		done, err := s.moveStray(ctx, name, st, until)
		if done = done && time.Now().After(st.watched); done {
			done, err = s.endHold(ctx, name)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil || done || !st.raced && st.at == 0 {
			if err == nil && st.left > 0 {
				err = fmt.Errorf("%d messages of %s stay: %w", st.left, name, ErrOccupied)
			}
			st.state.Report(err)
		}
		if done {
			delete(s.strays, name)
		}
	}
}

// moveStray moves messages of one stray. done: the partition is now empty, or the queue has grown to include it.
func (s *Scheduler) moveStray(ctx context.Context, name string, st *stray, until time.Time) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*loop.CallTimeout)
	defer cancel()
	queue, partition, _ := lua.SplitPartition(name)
	counts, err := lua.ReadCounts(ctx, s.cfg.Client, s.globals, queue)
	if err != nil || counts.Latest() > partition {
		st.at, st.left, st.raced = 0, 0, false
		return err == nil, err
	}
	from := lua.NewKeys(s.cfg.Prefix, name)
	n, err := s.cfg.Client.Do(ctx, s.cfg.Client.B().Zcard().Key(from.Due).Build()).AsInt64()
	if err != nil || n == 0 {
		st.at, st.left, st.raced = 0, 0, false
		return err == nil, lua.Classify("ZCARD "+from.Due, err)
	}
	if st.settled && n == st.left && time.Since(st.ended) < strayRest {
		return false, nil
	}
	st.settled, st.raced = false, st.raced && st.at > 0
	for members, bytes := 0, 0; members < strayMembers && bytes < strayBytes && time.Now().Before(until); members++ {
		m := move{c: s.cfg.Client, prefix: s.cfg.Prefix, from: from, to: func(place string) lua.Keys {
			return lua.NewKeys(s.cfg.Prefix, lua.PartitionName(queue, counts.Of(place)))
		}}
		outcome, err := m.at(ctx, st.at)
		bytes += m.one.size()
		switch {
		case err != nil:
			return false, err
		case outcome == moveEnd:
			st.left, st.settled, st.at, st.ended = st.at, !st.raced, 0, time.Now()
			return st.left == 0, nil
		case outcome != moveDone:
			st.at++
			st.raced = st.raced || outcome == moveRaced
		}
	}
	return false, nil
}

// endHold ends the hold of a partition, unless its queue is held. A deletion leaves a partition held if messages came
// to it meanwhile. A client of an earlier release may bring that partition back: then its hold ends when it has all
// groups of partition 0, because a group that comes later would miss what the other groups have acknowledged. Until
// then done is false. One round trip if the partition is not held, else up to six.
func (s *Scheduler) endHold(ctx context.Context, name string) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	queue, partition, _ := lua.SplitPartition(name)
	held, err := s.isHeld(ctx, name)
	if err != nil || !held {
		return err == nil, err
	}
	held, err = s.isHeld(ctx, queue)
	if err != nil || held {
		return err == nil, err
	}
	counts, err := lua.ReadCounts(ctx, s.cfg.Client, s.globals, queue)
	if err != nil {
		return false, err
	}
	if counts.Latest() > partition {
		complete, err := s.hasAllGroups(ctx, queue, partition)
		if err != nil || !complete {
			return false, err
		}
	}
	key := lua.NewKeys(s.cfg.Prefix, name).Policy
	err = s.cfg.Client.Do(ctx, s.cfg.Client.B().Hdel().Key(key).Field("held").Build()).Error()
	return err == nil, lua.Classify("HDEL "+key, err)
}

// hasAllGroups reports whether a partition has every group of partition 0.
func (s *Scheduler) hasAllGroups(ctx context.Context, queue string, partition int) (bool, error) {
	own, err := s.served(ctx, queue, 0, 1)
	if err != nil {
		return false, err
	}
	other, err := s.served(ctx, queue, partition, partition+1)
	if err != nil {
		return false, err
	}
	return other[0].hasGroups(own[0]), nil
}

func (s *Scheduler) isHeld(ctx context.Context, name string) (bool, error) {
	key := lua.NewKeys(s.cfg.Prefix, name).Policy
	held, err := s.cfg.Client.Do(ctx, s.cfg.Client.B().Hget().Key(key).Field("held").Build()).ToString()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	return held == "1", lua.Classify("HGET "+key, err)
}

// GrownTo returns how many partitions a queue has. If the registry has lost the count, it is the number that a growth
// has prepared, which bridges register again. Several round trips.
func GrownTo(ctx context.Context, c rueidis.Client, prefix, queue string) (int, error) {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return 0, err
	}
	s := Scheduler{cfg: Config{Client: c, Prefix: prefix}}
	counts, err := lua.ReadCounts(ctx, c, lua.NewGlobals(prefix), queue)
	if err != nil {
		return 0, err
	}
	return s.grownTo(ctx, queue, counts.Latest())
}

// Gather moves the messages of a partition that the queue does not have to the partitions in which they belong.
// ErrOccupied: some could not be moved. It does nothing if the queue has the partition. About twelve round trips per
// message.
func Gather(ctx context.Context, c rueidis.Client, prefix, queue string, partition int) error {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckPartitions(partition+1)); err != nil {
		return err
	}
	s, st := Scheduler{cfg: Config{Client: c, Prefix: prefix}, globals: lua.NewGlobals(prefix)}, &stray{}
	for {
		name := lua.PartitionName(queue, partition)
		done, err := s.moveStray(ctx, name, st, time.Now().Add(strayTime))
		if err == nil && done {
			_, err = s.endHold(ctx, name)
		}
		if err != nil || done {
			return err
		}
		if st.settled {
			return fmt.Errorf("%d messages of %s stay: %w", st.left, name, ErrOccupied)
		}
	}
}
