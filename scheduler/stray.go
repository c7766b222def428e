package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Bounds of one pass over one partition beyond the count.
const (
	strayMembers = 1000
	strayBytes   = 4 << 20
	strayTime    = time.Second
	removeTries  = 50
	strayRest    = time.Minute // what stays is looked at again: what it had to make way for may have been delivered
)

// ErrOccupied: messages in a partition beyond the registered count cannot be moved, because others with the same ID are where they belong.
var ErrOccupied = errors.New("others with the same ID are in the partition that they belong to")

// stray is a partition that holds scheduled messages, and that neither the registry knows nor a growth has prepared: its name is nothing but
// what some producer made up. No worker reads it, and it has no group and no settings; so nothing is delivered from it, nor is the queue made
// to have it. Its messages are moved to where their IDs belong.
type stray struct {
	state   state
	at      int64     // rank from which the next pass goes on
	left    int64     // so many messages stay, as of the last pass to the end
	settled bool      // these, and no others, were there then
	raced   bool      // some changed while they were moved
	ended   time.Time // that pass
}

// placed parts the found partitions, that are unheard of: queues with the counts to register, and the names of strays.
func (s *Scheduler) placed(ctx context.Context, unheard map[string][]int) (publish map[string]lua.Counts, strays []string, err error) {
	publish = map[string]lua.Counts{}
	for queue, partitions := range unheard {
		s.mu.Lock()
		known := s.counts[queue]
		s.mu.Unlock()
		latest := known.Latest()
		if slices.Max(partitions) >= latest {
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

// grownTo returns how many partitions a growth has prepared, of which the registry knows so many: a growth gives each new partition the
// settings and every group of the queue before it is published, so one that is there without a gap, with both, may be published again.
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
	n := slices.IndexFunc(others, func(o service) bool { return !o.covers(own[0]) })
	if n < 0 {
		n = len(others)
	}
	return known + n, nil
}

// service is what a partition needs to be served as its queue is.
type service struct {
	groups []string
	policy map[string]string
}

func (o service) covers(own service) bool {
	return len(o.groups) > 0 && maps.Equal(o.policy, own.policy) &&
		!slices.ContainsFunc(own.groups, func(group string) bool { return !slices.Contains(o.groups, group) })
}

// served looks at partitions from one to before another.
func (s *Scheduler) served(ctx context.Context, queue string, from, to int) ([]service, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var asks []rueidis.Completed
	for i := from; i < to; i++ {
		k := lua.NewKeys(s.cfg.Prefix, lua.PartitionName(queue, i))
		asks = append(asks, s.cfg.Client.B().XinfoGroups().Key(k.Stream).Build(), s.cfg.Client.B().Hgetall().Key(k.Policy).Build())
	}
	found := make([]service, to-from)
	for i, reply := range s.cfg.Client.DoMulti(ctx, asks...) {
		var err error
		if one := &found[i/2]; i%2 == 0 {
			one.groups, err = groupNames(reply)
		} else {
			one.policy, err = reply.AsStrMap()
		}
		if err = lua.Classify("look at partitions of "+queue, err); err != nil && !errors.Is(err, lua.ErrWrongType) {
			return nil, fmt.Errorf("scheduler: %w", err)
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

// foundStrays notes strays, and says so once.
func (s *Scheduler) foundStrays(names []string) {
	for _, name := range names {
		if s.strays[name] == nil {
			log := s.cfg.Logger.With("queue", name)
			log.Warn("moving messages out of a partition that the queue does not have")
			s.strays[name] = &stray{state: state{log: log, what: "move messages out of a partition that the queue does not have", quiet: s.quiet}}
		}
	}
}

// moveStrays makes one bounded pass over the strays. The order is by chance, so that all have their turn.
func (s *Scheduler) moveStrays(ctx context.Context) {
	until := time.Now().Add(strayTime)
	for name, st := range s.strays {
		if ctx.Err() != nil || time.Now().After(until) {
			return
		}
		done, err := s.moveStray(ctx, name, st, until)
		if ctx.Err() != nil {
			return
		}
		if err != nil || done || !st.raced && st.at == 0 {
			if err == nil && st.left > 0 {
				err = fmt.Errorf("scheduler: %d messages of %s stay: %w", st.left, name, ErrOccupied)
			}
			st.state.report(err)
		}
		if done {
			delete(s.strays, name)
		}
	}
}

// moveStray says whether the partition is empty, or has become one of the queue's.
func (s *Scheduler) moveStray(ctx context.Context, name string, st *stray, until time.Time) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
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
		m := move{c: s.cfg.Client, prefix: s.cfg.Prefix, from: from, to: func(id string) lua.Keys {
			return lua.NewKeys(s.cfg.Prefix, lua.PartitionName(queue, counts.Of(id)))
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

// Gather moves the messages of a partition that the queue does not have to where they belong. ErrOccupied: some stay. When the queue
// has the partition it does nothing. About twelve round trips per message.
func Gather(ctx context.Context, c rueidis.Client, prefix, queue string, partition int) error {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue), lua.CheckPartitions(partition+1)); err != nil {
		return err
	}
	s, st := Scheduler{cfg: Config{Client: c, Prefix: prefix}, globals: lua.NewGlobals(prefix)}, &stray{}
	for {
		done, err := s.moveStray(ctx, lua.PartitionName(queue, partition), st, time.Now().Add(strayTime))
		if err != nil || done {
			return err
		}
		if st.settled {
			return fmt.Errorf("scheduler: %d messages of %s stay: %w", st.left, lua.PartitionName(queue, partition), ErrOccupied)
		}
	}
}

type moved int

const (
	moveDone  moved = iota
	moveLeft        // another one is there under its name
	moveRaced       // it was changed meanwhile
	moveEnd         // there is none
)

// move takes one message from a partition to another, which is in another slot: it is added there, and then removed here. After a failure
// between both it is in both, and the next move finds it there, or it has been delivered, and is once more: at least once. What somebody
// cancels or changes between both is taken back.
type move struct {
	c      rueidis.Client
	prefix string
	from   lua.Keys
	to     func(id string) lua.Keys
	one    held
	added  *lua.Keys // where it was written; nil = nowhere, or it was there
}

// held is what a partition holds under one member.
type held struct {
	member        string
	score         float64
	payload, meta *string // nil: none
}

func (h held) size() int {
	n := len(h.member)
	for _, value := range []*string{h.payload, h.meta} {
		if value != nil {
			n += len(*value)
		}
	}
	return n
}

func (h held) equal(o held) bool {
	same := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	return h.score == o.score && same(h.payload, o.payload) && same(h.meta, o.meta)
}

// at moves the message of a rank.
func (m *move) at(ctx context.Context, rank int64) (outcome moved, err error) {
	err = m.c.Dedicated(func(c rueidis.DedicatedClient) error {
		k, at := m.from, strconv.FormatInt(rank, 10)
		members, err := c.Do(ctx, c.B().Zrange().Key(k.Due).Min(at).Max(at).Withscores().Build()).AsZScores()
		if err != nil || len(members) == 0 {
			outcome = moveEnd
			return err
		}
		m.one = held{member: members[0].Member, score: members[0].Score}
		return m.one.read(c.DoMulti(ctx, values(c, k, m.one.member)...))
	})
	if err == nil && outcome != moveEnd {
		outcome, err = m.add(ctx, m.to(lua.ParseMember(m.one.member).ID))
	}
	if err == nil && outcome == moveDone {
		if outcome, err = m.remove(ctx, m.from); err == nil && outcome != moveDone && m.added != nil {
			_, err = m.remove(ctx, *m.added) // cancelled, say: it must not come from there
		}
	}
	if err != nil {
		err = fmt.Errorf("scheduler: move a message: %w", lua.Classify("move from "+m.from.Due, err))
	}
	return outcome, err
}

// remove takes the message out of a partition, where it still is as it was. Others that come and go there meanwhile make it try again.
func (m *move) remove(ctx context.Context, k lua.Keys) (outcome moved, err error) {
	err = m.c.Dedicated(func(c rueidis.DedicatedClient) error {
		for range removeTries {
			there, absent, err := m.look(ctx, c, k)
			if err != nil {
				return err
			}
			if outcome = moveRaced; absent || !there.equal(m.one) {
				return unwatch(ctx, c)
			}
			done, err := exec(ctx, c, c.B().Zrem().Key(k.Due).Member(m.one.member).Build(), c.B().Hdel().Key(k.Payload).Field(m.one.member).Build(),
				c.B().Hdel().Key(k.Meta).Field(m.one.member).Build())
			if done {
				outcome = moveDone
			}
			if done || err != nil {
				return err
			}
		}
		return nil
	})
	return outcome, err
}

// look reads what a partition holds under the message's name, and watches it.
func (m *move) look(ctx context.Context, c rueidis.DedicatedClient, k lua.Keys) (there held, absent bool, err error) {
	replies := c.DoMulti(ctx, append([]rueidis.Completed{watch(c, k), c.B().Zscore().Key(k.Due).Member(m.one.member).Build()}, values(c, k, m.one.member)...)...)
	if err := replies[0].Error(); err != nil {
		return there, false, err
	}
	if absent = rueidis.IsRedisNil(replies[1].Error()); !absent {
		there.score, err = replies[1].AsFloat64()
	}
	return there, absent, errors.Join(err, there.read(replies[2:]))
}

// add writes the message where it belongs, unless it is there, or another one of its name.
func (m *move) add(ctx context.Context, k lua.Keys) (outcome moved, err error) {
	err = m.c.Dedicated(func(c rueidis.DedicatedClient) error {
		there, absent, err := m.look(ctx, c, k)
		if err != nil {
			return err
		}
		if !absent {
			if !there.equal(m.one) {
				outcome = moveLeft
			}
			return unwatch(ctx, c)
		}
		var writes []rueidis.Completed
		for key, value := range map[string]*string{k.Payload: m.one.payload, k.Meta: m.one.meta} {
			if value != nil {
				writes = append(writes, c.B().Hset().Key(key).FieldValue().FieldValue(m.one.member, *value).Build())
			} else {
				writes = append(writes, c.B().Hdel().Key(key).Field(m.one.member).Build())
			}
		}
		done, err := exec(ctx, c, append(writes, c.B().Zadd().Key(k.Due).ScoreMember().ScoreMember(m.one.score, m.one.member).Build())...)
		if !done {
			outcome = moveRaced
			return err
		}
		m.added = &k
		due := strconv.FormatFloat(m.one.score, 'f', 0, 64) // best effort: a survey sees the message without it
		_ = c.Do(ctx, c.B().Xadd().Key(k.Wake).Maxlen().Threshold("1").Id("*").FieldValue().FieldValue("due_ms", due).Build()).Error()
		return err
	})
	return outcome, err
}

// read takes the replies to values.
func (h *held) read(replies []rueidis.RedisResult) (err error) {
	for i, value := range []**string{&h.payload, &h.meta} {
		text, failed := replies[i].ToString()
		if failed == nil {
			*value = &text
		} else if !rueidis.IsRedisNil(failed) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

func values(c rueidis.DedicatedClient, k lua.Keys, member string) []rueidis.Completed {
	return []rueidis.Completed{c.B().Hget().Key(k.Payload).Field(member).Build(), c.B().Hget().Key(k.Meta).Field(member).Build()}
}

func watch(c rueidis.DedicatedClient, k lua.Keys) rueidis.Completed {
	return c.B().Watch().Key(k.Due, k.Payload, k.Meta).Build()
}

func unwatch(ctx context.Context, c rueidis.DedicatedClient) error {
	return c.Do(ctx, c.B().Unwatch().Build()).Error()
}

// exec runs commands in a transaction; done is false when what was watched has changed, and with an error.
func exec(ctx context.Context, c rueidis.DedicatedClient, commands ...rueidis.Completed) (done bool, err error) {
	replies := c.DoMulti(ctx, slices.Concat([]rueidis.Completed{c.B().Multi().Build()}, commands, []rueidis.Completed{c.B().Exec().Build()})...)
	for _, reply := range replies[:len(replies)-1] { // what the server refuses is refused here
		err = errors.Join(err, reply.Error())
	}
	results, failed := replies[len(replies)-1].ToArray()
	if rueidis.IsRedisNil(failed) {
		return false, err
	}
	err = errors.Join(err, failed)
	for _, result := range results {
		err = errors.Join(err, result.Error())
	}
	return err == nil, err
}
