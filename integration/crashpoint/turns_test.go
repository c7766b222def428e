package crashpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// keyed returns an item with a key.
func keyed(id, key string, when lua.When) lua.Item {
	one := item(id, when)
	one.Meta = lua.EncodeMeta(map[string]string{"of": id}, 0, time.Time{}, lua.FieldValue{Field: lua.FieldKey, Value: key})
	return one
}

// passTurns frees and passes on keys, if there are any.
func (s *scene) passTurns() (moved int) {
	if s.number("EXISTS", s.k.Turns) == 0 {
		return 0
	}
	done, err := lua.PassTurns(s.ctx, s.c, s.k, lua.TurnsPassed{}, 100)
	s.must(err)
	return done.Moved + done.Freed
}

// holdKeys delivers messages with keys to the groups, and lets another message with each key wait behind. pairs has the
// ID and the key of each message. It returns what group a holds, by message ID.
func (s *scene) holdKeys(pairs ...string) map[string]lua.Held {
	s.Helper()
	for i := 0; i < len(pairs); i += 2 {
		s.send(keyed(pairs[i], pairs[i+1], "+0"))
	}
	s.drain()
	held := s.hold("a", "c1")
	for _, group := range s.groups[1:] {
		s.hold(group, "c1")
	}
	for i := 0; i < len(pairs); i += 2 {
		id := "behind " + pairs[i]
		s.send(keyed(id, pairs[i+1], hour))
		s.do("ZADD", s.k.Due, "XX", "1000", id)
		s.owe("a", id, delivered, delivered)
		h := held[pairs[i]]
		h.Key = pairs[i+1]
		held[pairs[i]] = h
	}
	s.drain()
	return held
}

// retryMember returns the schedule member of the retry of an entry for group a.
func retryMember(id string, held lua.Held) string {
	return id + lua.Separator + "a" + lua.Separator + held.Entry
}

// fails lets group a fail an entry that it holds, with a retry after a delay.
func (s *scene) fails(held lua.Held, delay time.Duration) {
	s.Helper()
	_, err := lua.Retry(s.ctx, s.c, s.k, "a", attempts, []lua.Failure{{Held: held, Action: lua.ActionRetry, Delay: delay}})
	s.must(err)
}

// turns are the scripts with messages that have keys.
func turns() []scenario {
	return []scenario{
		{script: "drain", single: true, state: "with keys: free, busy, retried, expired, and in line",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				held := s.holdKeys("own", "r", "dying", "d", "left", "x")
				won, err := lua.Ack(s.ctx, s.c, s.k, "a", []lua.Held{{Entry: held["left"].Entry}})
				s.must(err)
				if !won[0] {
					s.Error("not acknowledged")
				}
				// A message that waits in line goes before others.
				s.do("ZREM", s.k.Turns, "x"+lua.Separator+"busy"+lua.Separator+held["left"].Entry)
				s.fails(held["own"], 0)
				s.fails(held["dying"], time.Hour)
				_, err = lua.Expire(s.ctx, s.c, s.k, []string{retryMember("dying", held["dying"])})
				s.must(err)
				s.send(keyed("first", "k", hour), keyed("second", "k", hour), keyed("third", "x", hour))
				// The order is the same in every run, because the n-th command is refused.
				s.do("ZADD", s.k.Due, "XX", "1998", retryMember("own", held["own"]), "1999", retryMember("dying", held["dying"]),
					"2000", "first", "2001", "second", "2002", "third")
				for _, id := range []string{"own", "first", "second", "third"} {
					s.owe("a", id, delivered, delivered)
				}
				s.owe("a", "dying", dead, dead)
				return func(c rueidis.Client) error {
					d, err := lua.Drain(s.ctx, c, s.k, 100, 1<<20)
					if err == nil && d.Refusal != "" {
						err = errors.New(d.Refusal)
					}
					return err
				}
			}},
		{script: "enqueue", state: "retries of an export, which hold their keys here, too",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.holdKeys("held", "h")
				s.owe("a", "held", delivered, delivered)
				var items []lua.Item
				// The order is the same in every run, because the n-th command is refused. Another message holds the key
				// of later.
				for _, one := range [][2]string{{"free", "k"}, {"later", "h"}} {
					id, key := one[0], one[1]
					items = append(items, lua.Item{ID: id + lua.Separator + "a" + lua.Separator + "1000-1", When: hour,
						Payload: []byte(body(id)),
						Meta:    fmt.Sprintf(`{"id":%q,"for":"a","attempt":"2","key":%q,"h:of":%q}`, id, key, id)})
					s.owe("a", id, delivered|gone, delivered)
				}
				return func(c rueidis.Client) error {
					_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{Name: "t", Window: time.Minute}, items, lua.Durability{})
					return err
				}
			}},
		{script: "ack", state: "with keys, the last group and one of two",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a", "b")
				held := s.holdKeys("last", "k", "half", "h")
				s.do("XACK", s.k.Stream, "b", held["last"].Entry)
				for _, id := range []string{"behind last", "behind half", "half"} {
					s.owe("b", id, delivered, delivered)
				}
				s.owe("a", "last", delivered|gone, gone)
				s.owe("a", "half", delivered|gone, gone)
				return func(c rueidis.Client) error {
					_, err := lua.Ack(s.ctx, c, s.k, "a", []lua.Held{held["last"], held["half"]})
					return err
				}
			}},
		{script: "retry", state: "with keys: kept and given away", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			named := item("named", "+0") // its retry is named by its ID
			named.Meta = lua.EncodeMeta(map[string]string{"of": "named"}, 0, time.Time{},
				lua.FieldValue{Field: "overlap", Value: "skip"})
			s.send(named)
			held := s.holdKeys("again", "k", "given up", "d")
			s.owe("a", "named", delivered, delivered)
			s.owe("a", "again", delivered, delivered)
			s.owe("a", "given up", delivered|dead, delivered|dead) // reclaimed if its dead letter was refused
			return func(c rueidis.Client) error {
				_, err := lua.Retry(s.ctx, c, s.k, "a", attempts, []lua.Failure{
					{Held: held["again"], Action: lua.ActionRetry, Delay: time.Hour},
					{Held: held["named"], Action: lua.ActionRetry, Delay: time.Hour},
					{Held: held["given up"], Action: lua.ActionDead, Reason: lua.ReasonDeadLetter}})
				return err
			}
		}},
		{script: "reclaim", state: "with a key", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.holdKeys("abandoned", "k")
			s.owed[address{"a", "abandoned"}] = debt{unless: delivered, once: delivered, most: 3} // the second try counts, too
			return s.reclaims(attempts, 0)
		}},
		{script: "cancel_retries", state: "of a message with a key", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.fails(s.holdKeys("failed", "k")["failed"], time.Hour)
			s.owe("a", "failed", delivered|gone, gone)
			return func(c rueidis.Client) error {
				_, _, err := lua.CancelRetries(s.ctx, c, s.k, lua.Walk{Limit: 100}, []string{"failed"})
				return err
			}
		}},
		{script: "cancel_entries", state: "of messages with a key: held, and not read yet",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.holdKeys("held", "h")
				s.send(keyed("ready", "r", "+0"))
				s.drain()
				s.owe("a", "held", delivered|gone, gone)
				s.owe("a", "ready", delivered|gone, gone)
				return func(c rueidis.Client) error {
					_, _, err := lua.CancelEntries(s.ctx, c, s.k, lua.EntryWalk{Limit: 100}, []string{"held", "ready"},
						lua.Durability{})
					return err
				}
			}},
		{script: "cancel_entries", state: "of a message that a worker gave back",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("given back", "+0"))
				s.drain()
				held := s.hold("a", "c1")["given back"]
				// As XNACK FAIL of Redis 8.8 leaves the entry: pending, and held by no consumer.
				s.do("XCLAIM", s.k.Stream, "a", "", "0", held.Entry, "TIME", "0", "RETRYCOUNT", "1", "JUSTID")
				s.owe("a", "given back", delivered|gone, gone)
				return func(c rueidis.Client) error {
					ids := []string{"given back"}
					_, _, err := lua.CancelEntries(s.ctx, c, s.k, lua.EntryWalk{Limit: 100}, ids, lua.Durability{})
					return err
				}
			}},
		{script: "extend", state: "what was cancelled", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			held := s.holdKeys("held", "h")["held"]
			_, _, err := lua.CancelEntries(s.ctx, s.c, s.k, lua.EntryWalk{Limit: 100}, []string{"held"}, lua.Durability{})
			s.must(err)
			s.owe("a", "held", delivered|gone, gone)
			return func(c rueidis.Client) error {
				answers, err := lua.Extend(s.ctx, c, s.k, "a", "c1", []lua.Held{held})
				if err == nil && answers[0] != lua.HeldCancelled {
					s.Errorf("the answer is %v", answers)
				}
				return err
			}
		}},
		{script: "cancel", state: "with keys: a retry that holds one, and one that waits",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				held := s.holdKeys("failed", "k", "held", "h")
				s.fails(held["failed"], time.Hour)
				s.owe("a", "failed", delivered|gone, gone)
				s.owe("a", "held", delivered, delivered)
				s.owe("a", "behind held", delivered|gone, gone)
				return func(c rueidis.Client) error {
					_, err := lua.Cancel(s.ctx, c, s.k, []string{retryMember("failed", held["failed"]), "behind held"},
						lua.Durability{})
					return err
				}
			}, after: func(s *scene) {
				if s.number("EXISTS", s.k.Turns) == 0 {
					s.Error("nobody holds a key")
				}
			}},
		{script: "pass_turns", state: "done with, deleted, and not in line",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				held := s.holdKeys("done", "d", "retried", "r", "held", "h", "in line", "l")
				s.do("XACK", s.k.Stream, "a", held["done"].Entry, held["in line"].Entry)
				s.do("XDEL", s.k.Stream, held["in line"].Entry)
				s.fails(held["retried"], time.Hour)
				s.do("ZREM", s.k.Due, retryMember("retried", held["retried"]))
				s.do("ZADD", s.k.Turns, "0", "no key")
				s.do("ZREMRANGEBYLEX", s.k.Turns, "[h"+lua.Separator+"wait", "(h"+lua.Separator+"wait ")
				s.owe("a", "held", delivered, delivered)
				return func(c rueidis.Client) error {
					_, err := lua.PassTurns(s.ctx, c, s.k, lua.TurnsPassed{}, 100)
					return err
				}
			}},
		{script: "pass_turns", state: "places that nobody is in, behind a message that is held",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.holdKeys("held", "h")
				s.send(keyed("deleted", "h", hour), keyed("moved", "h", hour))
				s.do("ZADD", s.k.Due, "XX", "1001", "deleted", "1002", "moved")
				s.drain()
				s.do("ZREM", s.k.Due, "deleted") // plain commands do not know places in line
				s.do("HDEL", s.k.Payload, "deleted")
				s.do("HDEL", s.k.Meta, "deleted")
				s.do("ZADD", s.k.Due, "XX", "1003", "moved")
				s.owe("a", "held", delivered, delivered)
				s.owe("a", "moved", delivered, delivered)
				return func(c rueidis.Client) error {
					_, err := lua.PassTurns(s.ctx, c, s.k, lua.TurnsPassed{}, 100)
					return err
				}
			}, after: func(s *scene) {
				const left = 2 // the holder of the key, and the waiting message
				if n := s.number("ZCARD", s.k.Turns); n != left {
					s.Errorf("%d members of turns", n)
				}
			}},
	}
}
