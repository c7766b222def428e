package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

type moveOutcome int

const (
	moveDone  moveOutcome = iota
	moveLeft              // another message with this name is in the place
	moveRaced             // somebody else changed the message during the move
	moveEnd               // there is no message at that rank
)

// move takes one message from a partition to another one, in another slot. It adds the message to the target, then
// removes it from the source. After a failure in between both hold it. Then the next move finds it in the target, or
// the target has delivered it and it is delivered once more: at least once. If somebody cancels or changes the message
// in the source in between, move removes it from the target again.
type move struct {
	c      rueidis.Client
	prefix string
	from   lua.Keys
	to     func(place string) lua.Keys // keys of the target, by the key of a message, or by its ID
	one    heldMember
	added  *lua.Keys // target to which move added the message; nil = it added nothing, or the message was there before
}

// heldMember is the data of one member of a partition.
type heldMember struct {
	member        string
	score         float64
	payload, meta *string // nil: none
}

// place returns the text that decides the partition: the key, or else the ID.
func (h heldMember) place() string {
	id := lua.ParseMember(h.member).ID
	if h.meta != nil {
		if e, ok := lua.DecodeMeta(id, *h.meta); ok {
			return cmp.Or(e.Extra[lua.FieldKey], id)
		}
	}
	return id
}

// due returns the due time, without the mark of a message that waits for its key: in the target it waits behind other
// messages.
func (h heldMember) due() float64 {
	due, _ := lua.DueScore(h.score)
	return due
}

func (h heldMember) size() int {
	n := len(h.member)
	for _, value := range []*string{h.payload, h.meta} {
		if value != nil {
			n += len(*value)
		}
	}
	return n
}

func (h heldMember) equal(o heldMember) bool {
	same := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	return h.due() == o.due() && same(h.payload, o.payload) && same(h.meta, o.meta)
}

// at moves the message at a rank of the schedule.
func (m *move) at(ctx context.Context, rank int64) (outcome moveOutcome, err error) {
	err = lua.Dedicated(ctx, m.c, func(c rueidis.DedicatedClient) error {
		outcome = moveDone
		k, at := m.from, strconv.FormatInt(rank, 10)
		members, err := c.Do(ctx, c.B().Zrange().Key(k.Due).Min(at).Max(at).Withscores().Build()).AsZScores()
		if err != nil || len(members) == 0 {
			outcome = moveEnd
			return err
		}
		m.one = heldMember{member: members[0].Member, score: members[0].Score}
		return m.one.read(c.DoMulti(ctx, readMember(c, k, m.one.member)...))
	})
	if err == nil && outcome != moveEnd {
		outcome, err = m.add(ctx, m.to(m.one.place()))
	}
	if err == nil && outcome == moveDone {
		if outcome, err = m.remove(ctx, m.from); err == nil && outcome != moveDone && m.added != nil {
			_, err = m.remove(ctx, *m.added) // it was cancelled, for example: the target must not deliver it
		}
	}
	if err != nil {
		err = fmt.Errorf("move a message: %w", lua.Classify("move from "+m.from.Due, err))
	}
	return outcome, err
}

// remove takes the message out of a partition if it is unchanged. It tries again when other messages come or go
// meanwhile.
func (m *move) remove(ctx context.Context, k lua.Keys) (outcome moveOutcome, err error) {
	err = lua.Dedicated(ctx, m.c, func(c rueidis.DedicatedClient) error {
		for range removeTries {
			there, absent, err := m.look(ctx, c, k)
			if err != nil {
				return err
			}
			outcome = moveRaced
			if absent || !there.equal(m.one) {
				return unwatch(ctx, c)
			}
			removal := []rueidis.Completed{c.B().Zrem().Key(k.Due).Member(m.one.member).Build(),
				c.B().Hdel().Key(k.Payload).Field(m.one.member).Build(),
				c.B().Hdel().Key(k.Meta).Field(m.one.member).Build()}
			if due, waits := lua.DueScore(there.score); waits { // it also gives up its place in the line of its key
				place := lua.Place(m.one.place(), due, m.one.member)
				removal = append(removal, c.B().Zrem().Key(k.Turns).Member(place).Build())
			}
			done, err := lua.Transact(ctx, c, k.Due, removal...)
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

// look watches the keys of a partition, and reads its data under the message's name.
func (m *move) look(ctx context.Context, c rueidis.DedicatedClient, k lua.Keys) (there heldMember, absent bool, err error) {
	replies := c.DoMulti(ctx, append([]rueidis.Completed{watch(c, k), c.B().Zscore().Key(k.Due).Member(m.one.member).Build()},
		readMember(c, k, m.one.member)...)...)
	if err := replies[0].Error(); err != nil {
		return there, false, err
	}
	if absent = rueidis.IsRedisNil(replies[1].Error()); !absent {
		there.score, err = replies[1].AsFloat64()
	}
	return there, absent, errors.Join(err, there.read(replies[2:]))
}

// add writes the message to its target, unless the target holds it already, or another message of this name.
func (m *move) add(ctx context.Context, k lua.Keys) (outcome moveOutcome, err error) {
	err = lua.Dedicated(ctx, m.c, func(c rueidis.DedicatedClient) error {
		outcome = moveDone
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
		done, err := lua.Transact(ctx, c, k.Due, append(writes, c.B().Zadd().Key(k.Due).ScoreMember().ScoreMember(m.one.due(),
			m.one.member).Build())...)
		if !done {
			outcome = moveRaced
			return err
		}
		m.added = &k
		due := strconv.FormatFloat(m.one.due(), 'f', 0, 64) // best effort: without a token a survey finds the message
		_ = c.Do(ctx, c.B().Xadd().Key(k.Wake).Maxlen().Threshold("1").Id("*").FieldValue().FieldValue("due_ms",
			due).Build()).Error()
		return err
	})
	return outcome, err
}

// read parses the replies of readMember.
func (h *heldMember) read(replies []rueidis.RedisResult) (err error) {
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

func readMember(c rueidis.DedicatedClient, k lua.Keys, member string) []rueidis.Completed {
	return []rueidis.Completed{c.B().Hget().Key(k.Payload).Field(member).Build(), c.B().Hget().Key(k.Meta).Field(member).Build()}
}

func watch(c rueidis.DedicatedClient, k lua.Keys) rueidis.Completed {
	return c.B().Watch().Key(k.Due, k.Payload, k.Meta).Build()
}

func unwatch(ctx context.Context, c rueidis.DedicatedClient) error {
	return c.Do(ctx, c.B().Unwatch().Build()).Error()
}
