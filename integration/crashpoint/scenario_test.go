package crashpoint

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// scenario is a script with a state in which one call takes as many branches as possible. Together, the scenarios of
// a script send each of its commands; TestEveryScriptStepFails fails if they do not.
type scenario struct {
	script, state string
	// prepare makes the state, and returns the call of the script.
	prepare func(s *scene) (call func(rueidis.Client) error)
	after   func(s *scene) // makes checks beyond the debts, after the call succeeded
	mend    func(s *scene) // makes repairs that the system needs before it can come to rest
	bodies  bool           // commands before the script store payload and meta, which may stay as orphans, or be gone
	single  bool           // if the refused command is a pcall, no message may be delivered twice
}

func scenarios() []scenario {
	return slices.Concat(scheduling(), exits(), upkeep(), housekeeping(), transfers(), recurrences(), turns())
}

// scheduling are the scripts for messages that are not ready yet.
func scheduling() []scenario {
	return []scenario{
		{script: "enqueue", state: "everything a batch may hold", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			again := item("first", hour)
			again.Dedup = lua.Refuse // so that the next call has a refusal to clear
			before := []lua.Item{item("known", hour), item("first", hour), again}
			_, err := lua.Enqueue(s.ctx, s.c, s.k, lua.Token{Name: "earlier", Window: time.Minute}, before, lua.Durability{})
			s.must(err)
			s.do("ZADD", s.k.Seen, "1", "ended")
			known, window, odd := item("known", hour), item("window", hour), item("odd", "+0")
			known.Dedup, window.Dedup, odd.Meta = lua.Refuse, lua.Window(time.Hour), `["no object"]`
			s.owe("a", "known", delivered, delivered)
			s.owe("a", "first", delivered, delivered)
			for _, id := range []string{"ready", "later", "window"} {
				s.owe("a", id, delivered|gone, delivered)
			}
			return func(c rueidis.Client) error {
				_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{Name: "t", Done: "earlier", Window: time.Minute},
					[]lua.Item{item("ready", "+0"), item("later", hour), known, window, odd}, lua.Durability{})
				return err
			}
		}},
		{script: "enqueue", state: "one message, as most calls", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			one := lua.Item{ID: headerless, When: hour, Payload: []byte(body(headerless))}
			_, err := lua.Enqueue(s.ctx, s.c, s.k, lua.Token{Name: "earlier", Window: time.Minute}, nil, lua.Durability{})
			s.must(err)
			s.owe("a", headerless, delivered|gone, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{Name: "t", Done: "earlier", Window: time.Minute}, []lua.Item{one},
					lua.Durability{})
				return err
			}
		}},
		{script: "enqueue_fresh", state: "as most calls", bodies: true,
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				described := item("described", hour)
				described.Dedup = lua.Fresh
				fresh := []lua.Item{{ID: headerless, When: hour, Payload: []byte(body(headerless))}, described}
				earlier := lua.Token{Name: "earlier", Window: time.Minute}
				_, err := lua.Enqueue(s.ctx, s.c, s.k, earlier, nil, lua.Durability{})
				s.must(err)
				for _, one := range fresh {
					s.owe("a", one.ID, delivered|gone, delivered)
				}
				return func(c rueidis.Client) error {
					token := lua.Token{Name: "t", Done: "earlier", Window: time.Minute}
					_, err := lua.EnqueueFresh(s.ctx, c, s.k, token, fresh)
					return err
				}
			}},
		{script: "enqueue_fresh", state: "repeated under its token", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			first := item("first", hour)
			first.Dedup = lua.Fresh
			fresh := []lua.Item{first, {ID: headerless, When: hour, Payload: []byte(body(headerless))}}
			call := func(c rueidis.Client) error {
				_, err := lua.EnqueueFresh(s.ctx, c, s.k, lua.Token{Name: "t", Window: time.Minute}, fresh)
				return err
			}
			s.must(call(s.c))
			s.do("ZREM", s.k.Due, headerless) // it has left the schedule
			s.owe("a", "first", delivered, delivered)
			return call
		}, mend: func(s *scene) { s.do("HDEL", s.k.Payload, headerless) }}, // an orphan if the call was refused
		{script: "enqueue_one", state: "as most calls", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			earlier := lua.Token{Name: "earlier", Window: time.Minute}
			_, err := lua.Enqueue(s.ctx, s.c, s.k, earlier, nil, lua.Durability{})
			s.must(err)
			one := item("one", hour)
			s.owe("a", "one", delivered|gone, delivered)
			return func(c rueidis.Client) error {
				token := lua.Token{Name: "t", Done: "earlier", Window: time.Minute}
				_, _, err := lua.EnqueueOne(s.ctx, c, s.k, token, false, one)
				return err
			}
		}},
		{script: "enqueue_one", state: "due within the token's window", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			one := item("one", hour)
			s.owe("a", "one", delivered|gone, delivered)
			return func(c rueidis.Client) error {
				_, _, err := lua.EnqueueOne(s.ctx, c, s.k, lua.Token{Name: "t", Window: 2 * time.Hour}, false, one)
				return err
			}
		}},
		{script: "enqueue_one", state: "a first try within the token's window that comes after its repeat",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				one := item("one", hour)
				call := func(c rueidis.Client, again bool) error {
					_, _, err := lua.EnqueueOne(s.ctx, c, s.k, lua.Token{Name: "t", Window: 2 * time.Hour}, again, one)
					return err
				}
				s.must(call(s.c, true))
				s.owe("a", "one", delivered, delivered)
				return func(c rueidis.Client) error { return call(c, false) }
			}},
		{script: "enqueue_one", state: "repeated while the message is scheduled",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				one := item("one", hour)
				call := func(c rueidis.Client) error {
					_, _, err := lua.EnqueueOne(s.ctx, c, s.k, lua.Token{Name: "t", Window: time.Minute}, true, one)
					return err
				}
				s.must(call(s.c))
				s.owe("a", "one", delivered, delivered)
				return call
			}},
		{script: "enqueue", state: "in the place of what is scheduled", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("hastened", hour), item("put off", hour), item("kept", hour))
			hastened, putOff, kept := item("hastened", "+0"), item("put off", "+7200000"), item("kept", hour)
			hastened.Dedup, putOff.Dedup, kept.Dedup = lua.Replace, lua.ReplaceLater, lua.ReplaceEarlier
			for _, id := range []string{"hastened", "put off", "kept"} {
				s.owe("a", id, delivered, delivered)
			}
			return func(c rueidis.Client) error {
				_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{Name: "t", Window: time.Minute},
					[]lua.Item{hastened, putOff, kept}, lua.Durability{})
				return err
			}
		}},
		{script: "enqueue", state: "nothing but an ID", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("other", hour))
			s.do("HSET", s.k.Payload, bare, "left by someone")
			s.do("HSET", s.k.Meta, bare, `{"h:left":"by someone"}`)
			s.owe("a", "other", delivered, delivered)
			s.owe("a", bare, delivered|gone, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{}, []lua.Item{{ID: bare, When: hour}}, lua.Durability{})
				return err
			}
		}},
		{script: "enqueue", state: "repeated under its token", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			taken, known := item("taken", "+0"), item("other", hour)
			known.Dedup = lua.Refuse
			s.send(item("other", hour))
			s.owe("a", "taken", delivered, delivered)
			s.owe("a", "other", delivered, delivered)
			again := func(c rueidis.Client) error {
				_, err := lua.Enqueue(s.ctx, c, s.k, lua.Token{Name: "t", Window: time.Minute}, []lua.Item{taken, known},
					lua.Durability{})
				return err
			}
			s.must(again(s.c))
			return again
		}},
		{script: "drain", single: true, state: "due, expired, malformed, retried, later",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a", "b")
				// The retry of a message without headers is read without the JSON decoder.
				s.send(item("failed", "+0"), lua.Item{ID: headerless, When: "+0", Payload: []byte(body(headerless))})
				held := s.hold("a", "c1")
				s.deliver("b")
				var failures []lua.Failure
				for _, id := range []string{"failed", headerless} {
					s.owed[address{"b", id}] = debt{unless: delivered, once: delivered}
					failures = append(failures, lua.Failure{Held: held[id], Action: lua.ActionRetry, Error: "no"})
				}
				_, err := lua.Retry(s.ctx, s.c, s.k, "a", attempts, failures)
				s.must(err)
				expired := item("expired", hour)
				expired.Meta = lua.EncodeMeta(nil, 0, time.UnixMilli(1))
				odd := item("odd", hour)
				odd.Meta = "{"
				s.send(item("due1", hour), item("due2", hour), lua.Item{ID: bare, When: hour}, expired, odd, item("later", hour))
				for i, id := range []string{"due1", "expired", bare, "odd", "due2"} {
					s.do("ZADD", s.k.Due, "XX", fmt.Sprint(1000+i), id)
				}
				s.owe("", "expired", dead, dead)
				s.owe("", "odd", dead, dead)
				s.owe("a", "failed", delivered, delivered)
				s.owe("a", headerless, delivered, delivered)
				for _, group := range s.groups {
					for _, id := range []string{"due1", "due2", bare, "later"} {
						s.owe(group, id, delivered, delivered)
					}
				}
				return func(c rueidis.Client) error {
					d, err := lua.Drain(s.ctx, c, s.k, 100, 1<<20)
					if err == nil && d.Refusal != "" {
						err = errors.New(d.Refusal)
					}
					return err
				}
			}},
		{script: "drain", single: true, state: "malformed, and dead letters refused",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				odd := item("odd", hour)
				odd.Meta = "{"
				s.send(odd, item("due", hour))
				s.do("ZADD", s.k.Due, "XX", "1000", "odd", "1001", "due")
				s.do("XADD", s.k.Dead, lastEntryID, "id", "the last possible")
				s.owe("", "odd", dead, dead)
				s.owe("a", "due", delivered, delivered)
				return func(c rueidis.Client) error {
					_, err := lua.Drain(s.ctx, c, s.k, 100, 1<<20)
					return err
				}
			}, mend: func(s *scene) {
				s.do("DEL", s.k.Dead)
				s.do("ZADD", s.k.Due, "XX", "1000", "odd") // it was put off
			}},
		{script: "drain", single: true, state: "limited, with a retry behind what is held back",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a", "b")
				s.send(item("failed", "+0"))
				held := s.hold("a", "c1")["failed"]
				s.send(item("ready1", "+0"), item("ready2", "+0")) // not delivered to a
				s.deliver("b")
				s.owed[address{"b", "failed"}] = debt{unless: delivered, once: delivered}
				failed := []lua.Failure{{Held: held, Action: lua.ActionRetry, Error: "no"}}
				_, err := lua.Retry(s.ctx, s.c, s.k, "a", attempts, failed)
				s.must(err)
				s.send(item("waits", hour))
				s.do("ZADD", s.k.Due, "XX", "1000", "waits")
				s.do("HSET", s.k.Policy, "rate", "1/h", "burst", "3", "ready_limit", "2")
				for _, id := range []string{"failed", "ready1", "ready2", "waits"} {
					s.owe("a", id, delivered, delivered)
				}
				for _, id := range []string{"ready1", "ready2", "waits"} {
					s.owe("b", id, delivered, delivered)
				}
				return func(c rueidis.Client) error {
					_, err := lua.Drain(s.ctx, c, s.k, 100, 1<<20)
					return err
				}
			}, mend: func(s *scene) {
				s.do("HDEL", s.k.Policy, "rate", "burst", "ready_limit")
				s.do("DEL", s.k.Rate)
			}},
		{script: "cancel", state: "scheduled, with a window, and not", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			windowed := item("windowed", hour)
			windowed.Dedup = lua.Window(time.Hour)
			s.send(windowed, item("plain", hour), item("other", hour))
			s.owe("a", "windowed", delivered|gone, gone)
			s.owe("a", "plain", delivered|gone, gone)
			s.owe("a", "other", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.Cancel(s.ctx, c, s.k, []string{"windowed", "unknown", "plain"}, lua.Durability{})
				return err
			}
		}},
		{script: "cancel", state: "one version, and another one", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("same", hour), item("moved", hour))
			s.owe("a", "same", delivered|gone, gone)
			s.owe("a", "moved", delivered, delivered)
			ids := []string{"same", "moved"}
			versions, err := lua.Versions(s.ctx, s.c, s.k, ids)
			if err != nil {
				s.Fatal(err)
			}
			s.do("ZINCRBY", s.k.Due, "1", "moved")
			return func(c rueidis.Client) error {
				_, err := lua.CancelVersions(s.ctx, c, s.k, ids, versions, lua.Durability{})
				return err
			}
		}},
		{script: "reschedule", state: "to an earlier time", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("moved", "+7200000"), item("other", hour))
			s.owe("a", "moved", delivered, delivered)
			s.owe("a", "other", delivered, delivered)
			return func(c rueidis.Client) error {
				_, moved, err := lua.Reschedule(s.ctx, c, s.k, "moved", "+1800000", lua.Durability{})
				if err == nil && !moved {
					s.Error("the message was not scheduled")
				}
				return err
			}
		}, after: func(s *scene) {
			due, err := s.c.Do(s.ctx, s.c.B().Zscore().Key(s.k.Due).Member("moved").Build()).AsFloat64()
			if want := float64(time.Now().Add(45 * time.Minute).UnixMilli()); err != nil || due > want {
				s.Errorf("due at %v and not before %v: %v", due, want, err)
			}
		}},
		{script: "cancel_retries", state: "of two groups, one of them to stay",
			prepare: func(s *scene) func(rueidis.Client) error {
				waitingRetries(s)
				s.owe("a", "failed", delivered|gone, gone)
				s.owe("b", "failed", delivered, delivered)
				return func(c rueidis.Client) error {
					_, _, err := lua.CancelRetries(s.ctx, c, s.k, lua.Walk{Limit: 100, Group: "a"}, []string{"unknown", "failed"})
					return err
				}
			}},
		{script: "reschedule_retries", state: "now", prepare: func(s *scene) func(rueidis.Client) error {
			waitingRetries(s)
			s.owe("a", "failed", delivered, delivered)
			s.owe("b", "failed", delivered, delivered)
			return func(c rueidis.Client) error {
				_, moved, err := lua.RescheduleRetries(s.ctx, c, s.k, lua.Walk{Limit: 100}, "+0", []string{"failed"})
				if err == nil && len(moved) != 2 {
					s.Errorf("%d were moved", len(moved))
				}
				return err
			}
		}},
		{script: "expire", state: "for the first time, and for one of two groups", prepare: expiring},
		{script: "redrive", state: "as it was, edited, and without a body",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				s.send(item("kept", "+0"), item("edited", "+0"), item("lost", "+0"), item("other", hour))
				held := s.hold("a", "c1")
				s.do("XDEL", s.k.Stream, held["lost"].Entry)
				var failures []lua.Failure
				for _, id := range []string{"kept", "edited", "lost"} {
					failures = append(failures, lua.Failure{Held: held[id], Action: lua.ActionDead, Reason: lua.ReasonDeadLetter})
				}
				_, err := lua.Retry(s.ctx, s.c, s.k, "a", attempts, failures)
				s.must(err)
				letters, err := s.c.Do(s.ctx, s.c.B().Xrange().Key(s.k.Dead).Start("-").End("+").Build()).AsXRangeSlices()
				s.must(err)
				s.owe("a", "kept", dead|delivered, delivered)
				s.owe("a", "edited", dead|delivered, delivered)
				s.owe("a", "lost", dead, dead)
				s.owe("a", "other", delivered, delivered)
				payload := []byte(body("edited"))
				return func(c rueidis.Client) error {
					again := make([]lua.Redrive, len(letters))
					for i, l := range letters {
						again[i] = lua.Redrive{Letter: l.ID, When: "+0"}
					}
					again[1].Payload = &payload
					again[1].Fields = lua.EncodeMeta(map[string]string{"of": "edited"}, 3, time.Time{})
					outcomes, err := lua.RedriveDead(s.ctx, c, s.k, again)
					if err == nil && slices.Contains(outcomes, lua.RedriveGone) && s.number("XLEN", s.k.Dead) > 1 {
						err = errors.New("a letter that is there is said to be gone")
					}
					return err
				}
			}},
		{script: "redrive", state: "of another partition: added by an earlier call, and new",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a")
				moved := func(id, letter string) lua.Redrive {
					return lua.Redrive{Letter: letter, When: hour, Moved: []lua.FieldValue{
						{Field: "id", Value: id}, {Field: "payload", Value: body(id)}, {Field: "h:of", Value: id},
						{Field: "group", Value: "a"}, {Field: "reason", Value: "dead_letter"}}}
				}
				_, err := lua.RedriveDead(s.ctx, s.c, s.k, []lua.Redrive{moved("added", "1000-0")})
				s.must(err)
				s.owe("a", "added", delivered, delivered)
				s.owe("a", "new", delivered|gone, delivered) // its letter is deleted by this call
				return func(c rueidis.Client) error {
					outcomes, err := lua.RedriveDead(s.ctx, c, s.k,
						[]lua.Redrive{moved("added", "1000-0"), moved("new", "2000-0")})
					if err == nil && !slices.Equal(outcomes, []lua.Redriven{lua.RedriveScheduled, lua.RedriveScheduled}) {
						err = fmt.Errorf("outcomes %v", outcomes)
					}
					return err
				}
			}, after: func(s *scene) {
				if n := s.number("ZCARD", s.k.Due); n != 2 {
					s.Errorf("%d messages are scheduled", n)
				}
			}},
	}
}

// waitingRetries prepares a message that failed in both groups, and another message.
func waitingRetries(s *scene) { retriesOf(s, item("failed", "+0")) }

func retriesOf(s *scene, failed lua.Item) {
	s.group("a", "b")
	s.send(failed, item("other", hour))
	for _, group := range s.groups {
		s.owe(group, "other", delivered, delivered)
		held := s.hold(group, "c1")
		_, err := lua.Retry(s.ctx, s.c, s.k, group, attempts,
			[]lua.Failure{{Held: held["failed"], Action: lua.ActionRetry, Delay: time.Hour}})
		s.must(err)
	}
}

// expiring prepares a message that expires before any delivery, and the retry of another one that expires for one
// group.
func expiring(s *scene) func(rueidis.Client) error {
	waitingRetries(s)
	s.send(item("fresh", hour), item("other", hour))
	s.owe("a", "failed", delivered|dead, dead)
	s.owe("b", "failed", delivered, delivered)
	for _, group := range s.groups {
		s.owe(group, "other", delivered, delivered)
		s.owe(group, "fresh", delivered|gone, gone)
	}
	s.owe("", "fresh", dead|gone, dead)
	return func(c rueidis.Client) error {
		members, err := c.Do(s.ctx, c.B().Zrange().Key(s.k.Due).Min("0").Max("-1").Build()).AsStrSlice()
		members = slices.DeleteFunc(members, func(member string) bool {
			m := lua.ParseMember(member)
			return m.ID == "other" || m.Group == "b"
		})
		if err == nil {
			_, err = lua.Expire(s.ctx, c, s.k, append(members, "unknown"))
		}
		return err
	}
}

// pendings prepares one entry of each kind that may be pending: group a holds them, group b is done with them.
func pendings(s *scene) map[string]lua.Held {
	s.group("a", "b")
	limited := item("limited", "+0")
	limited.Meta = lua.EncodeMeta(map[string]string{"of": "limited"}, 1, time.Time{})
	s.send(item("failed", "+0"), item("released", "+0"), item("snoozed", "+0"), item("given up", "+0"),
		limited, item("lost", "+0"),
		item("meant for b", "+0"))
	s.do("XADD", s.k.Stream, "*", "id", "odd", "payload", "p", "attempt", "first")
	s.do("XADD", s.k.Stream, "*", "id", "meant for b", "payload", body("meant for b"), "attempt", "2", "for", "b", "h:of",
		"meant for b")
	held := map[string]lua.Held{}
	for _, e := range s.read("a", "c1") {
		id := e.ID
		if e.For == "b" {
			id = "retry of b"
		}
		held[id] = lua.Held{Entry: e.EntryID, ID: e.ID}
		s.ids[e.EntryID] = e.ID
	}
	_, err := lua.Ack(s.ctx, s.c, s.k, "a", []lua.Held{held["meant for b"]})
	s.must(err)
	s.read("b", "c1")
	for id, h := range held {
		if id != "failed" { // b keeps one of them a little longer
			s.do("XACK", s.k.Stream, "b", h.Entry)
		}
	}
	s.owe("b", "failed", delivered, delivered)
	s.do("XDEL", s.k.Stream, held["lost"].Entry)
	s.owe("a", "failed", delivered, delivered)
	s.owe("a", "limited", dead, dead)
	s.owe("a", "lost", dead, dead)
	s.owe("a", "odd", dead, dead)
	return held
}

// exits are the scripts that remove entries from the pending list.
func exits() []scenario {
	return []scenario{
		{script: "ack", state: "with and without comparing the ID", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a", "b")
			s.send(item("one", "+0"), item("two", "+0"))
			held := s.hold("a", "c1")
			s.hold("b", "c1")
			s.do("XACK", s.k.Stream, "b", held["one"].Entry)
			s.owe("a", "one", delivered|gone, gone)
			s.owe("a", "two", delivered|gone, gone)
			s.owe("b", "two", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.Ack(s.ctx, c, s.k, "a", []lua.Held{held["one"], {Entry: held["two"].Entry}})
				return err
			}
		}},
		{script: "ack", state: "entries far apart, with what another group holds between them",
			prepare: func(s *scene) func(rueidis.Client) error {
				s.group("a", "b")
				between := []string{"x", "y", "z"}
				s.send(item("one", "+0"), item("x", "+0"), item("y", "+0"), item("z", "+0"), item("two", "+0"))
				held := s.hold("a", "c1")
				s.hold("b", "c1")
				s.do("XACK", s.k.Stream, "b", held["one"].Entry, held["two"].Entry)
				s.owe("a", "one", delivered|gone, gone)
				s.owe("a", "two", delivered|gone, gone)
				for _, id := range between {
					s.owe("a", id, delivered, delivered)
					s.owe("b", id, delivered, delivered)
				}
				return func(c rueidis.Client) error {
					_, err := lua.Ack(s.ctx, c, s.k, "a", []lua.Held{{Entry: held["one"].Entry}, {Entry: held["two"].Entry}})
					return err
				}
			}},
		{script: "retry", state: "every action on every kind of entry", prepare: func(s *scene) func(rueidis.Client) error {
			held := pendings(s)
			s.owe("a", "released", delivered, delivered)
			s.owe("a", "snoozed", delivered, delivered)
			s.owe("a", "given up", delivered|dead, dead)
			fail := func(id string, action lua.Action) lua.Failure {
				delay := time.Duration(-1)
				if action == lua.ActionSnooze {
					delay = 0
				}
				return lua.Failure{Held: held[id], Action: action, Delay: delay, Reason: lua.ReasonDeadLetter, Error: "no"}
			}
			return func(c rueidis.Client) error {
				outcomes, err := lua.Retry(s.ctx, c, s.k, "a", attempts, []lua.Failure{
					fail("failed", lua.ActionRetry), fail("released", lua.ActionRelease), fail("given up", lua.ActionDead),
					fail("limited", lua.ActionRetry), fail("lost", lua.ActionRetry), fail("odd", lua.ActionRetry),
					fail("retry of b", lua.ActionRetry), fail("snoozed", lua.ActionSnooze), fail("meant for b", lua.ActionDead),
				})
				if err == nil && slices.Contains(outcomes, lua.Stuck) {
					err = errors.New("an entry is stuck")
				}
				return err
			}
		}},
		{script: "reclaim", state: "every kind of entry", prepare: func(s *scene) func(rueidis.Client) error {
			pendings(s)
			s.owed[address{"a", "failed"}] = debt{delivered, delivered, interruptedMost}
			s.owed[address{"a", "released"}] = debt{delivered, delivered, interruptedMost}
			s.owed[address{"a", "snoozed"}] = debt{delivered, delivered, interruptedMost}
			s.owed[address{"a", "given up"}] = debt{delivered, delivered, interruptedMost}
			return s.reclaims(attempts, 0)
		}},
		{script: "reclaim", state: "crashes counted apart", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			fatal := item("fatal", "+0")
			fatal.Meta = lua.EncodeMeta(map[string]string{"of": "fatal"}, 0, time.Time{}, lua.Retries{MaxCrashes: 1}.Fields()...)
			s.send(item("survives", "+0"), fatal)
			s.hold("a", "c1")
			s.owed[address{"a", "survives"}] = debt{delivered, delivered, interruptedMost}
			s.owe("a", "fatal", dead, dead)
			counted := attempts
			counted.MaxCrashes, counted.For = 5, time.Hour
			return s.reclaims(counted, 0)
		}},
		{script: "reclaim", state: "a list left by an earlier pass", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("kept", "+0"))
			held := s.hold("a", "c1")
			s.do("XCLAIM", s.k.Stream, "a", lua.ReclaimConsumer, "0", held["kept"].Entry, "JUSTID")
			s.owe("a", "kept", delivered, delivered)
			return s.reclaims(attempts, time.Hour)
		}},
		{script: "reclaim", state: "leases that ended", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("over", "+0"), item("extended", "+0"), item("done", "+0"), item("lost", "+0"))
			held := s.hold("a", "c1")
			for id, h := range held {
				idle := "3600000"
				if id == "extended" {
					idle = "0"
				}
				s.do("XCLAIM", s.k.Stream, "a", "c1", "0", h.Entry, "IDLE", idle, "JUSTID")
				s.do("ZADD", s.k.Leases, "5", leaseOf(h.Entry))
			}
			s.do("XACK", s.k.Stream, "a", held["done"].Entry)
			s.do("XDEL", s.k.Stream, held["lost"].Entry)
			s.owed[address{"a", "over"}] = debt{delivered, delivered, interruptedMost}
			s.owe("a", "extended", delivered, delivered)
			s.owe("a", "lost", dead, dead)
			return s.reclaims(attempts, time.Hour)
		}},
		{script: "reclaim", state: "notes since when entries are held", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("abandoned", "+0"), item("leased", "+0"), item("ended", "+0"))
			held := s.hold("a", "c1")
			s.send(item("held", "+0"))
			s.hold("a", "c2")
			s.do("ZADD", s.k.Leases, year2100, leaseOf(held["leased"].Entry))
			notes := lua.ReclaimArgs{Group: "a", Attempts: attempts, Limit: 100, MaxBytes: 1 << 20, MinIdle: time.Hour,
				Notes: 100}
			_, err := lua.Reclaim(s.ctx, s.c, s.k, notes)
			s.must(err)
			s.do("XACK", s.k.Stream, "a", held["ended"].Entry)
			s.do("XCLAIM", s.k.Stream, "a", "c1", "0", held["abandoned"].Entry, "IDLE", "7200000", "JUSTID")
			s.owed[address{"a", "abandoned"}] = debt{delivered, delivered, interruptedMost}
			s.owe("a", "leased", delivered, delivered)
			s.owe("a", "held", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.Reclaim(s.ctx, c, s.k, notes)
				if err != nil && s.refusedIn("reclaim") == "lib/held" {
					s.Errorf("notes, which nothing depends on, ended the call: %v", err)
				}
				return err
			}
		}},
		{script: "reclaim", state: "dead letters refused", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			limited := item("limited", "+0")
			limited.Meta = lua.EncodeMeta(map[string]string{"of": "limited"}, 1, time.Time{})
			s.send(limited)
			s.hold("a", "c1")
			s.do("XADD", s.k.Dead, lastEntryID, "id", "the last possible")
			s.owe("a", "limited", dead, dead)
			return s.reclaims(attempts, 0)
		}, mend: func(s *scene) { s.do("DEL", s.k.Dead) }},
		{script: "reclaim", state: "progress of an attempt", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("m", "+0"))
			held := s.hold("a", "c1")["m"]
			_, err := lua.SaveProgress(s.ctx, s.c, s.k, "a", "c1", held, []byte{0xff})
			s.must(err)
			s.owed[address{"a", "m"}] = debt{delivered, delivered, interruptedMost}
			return s.reclaims(attempts, 0)
		}},
		{script: "ack_result", state: "with a result", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("one", "+0"))
			held := s.hold("a", "c1")["one"]
			s.owe("a", "one", delivered|gone, gone)
			return func(c rueidis.Client) error {
				_, err := lua.AckResult(s.ctx, c, s.k, "a", held, 1, time.Minute, []byte("paid"))
				return err
			}
		}},
		{script: "save_progress", state: "of a held entry", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("m", "+0"))
			held := s.hold("a", "c1")["m"]
			s.owe("a", "m", delivered, delivered)
			return func(c rueidis.Client) error {
				_, err := lua.SaveProgress(s.ctx, c, s.k, "a", "c1", held, []byte("page 7"))
				return err
			}
		}},
		{script: "receive", state: "two groups", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.group("b")
			s.send(item("m", "+0"), item("n", "+0"))
			for _, group := range []string{"a", "b"} {
				for _, id := range []string{"m", "n"} {
					s.owe(group, id, delivered, delivered)
				}
			}
			return func(c rueidis.Client) error {
				_, err := lua.Receive(s.ctx, c, s.k, "a", "c1", time.Second, 2*time.Second, 10)
				return err
			}
		}},
		{script: "receive", state: "a lease that no bridge forgot", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("m", "+0"))
			s.owe("a", "m", delivered, delivered)
			s.do("ZADD", s.k.Leases, "1", leaseOf("1-1"))
			return func(c rueidis.Client) error {
				_, err := lua.Receive(s.ctx, c, s.k, "a", "c1", time.Second, 2*time.Second, 10)
				return err
			}
		}},
		{script: "extend", state: "own, lost body, someone else's", prepare: func(s *scene) func(rueidis.Client) error {
			s.group("a")
			s.send(item("other", "+0"))
			held := s.hold("a", "c2")
			s.send(item("own", "+0"), item("lost", "+0"))
			for id, h := range s.hold("a", "c1") {
				held[id] = h
			}
			s.do("XDEL", s.k.Stream, held["lost"].Entry)
			s.owe("a", "other", delivered, delivered)
			s.owe("a", "own", delivered, delivered)
			s.owe("a", "lost", dead, dead)
			return func(c rueidis.Client) error {
				_, err := lua.Extend(s.ctx, c, s.k, "a", "c1", []lua.Held{held["own"], held["lost"], held["other"]})
				return err
			}
		}},
	}
}
