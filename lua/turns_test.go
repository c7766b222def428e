package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// keyed returns a message with a key that was due so many seconds ago.
func (b *rig) keyed(id, key string, ago int64) Item {
	return Item{ID: id, Payload: []byte("payload of " + id), Meta: `{"key":"` + key + `"}`,
		When: At(time.UnixMilli(b.now() - 1000*ago))}
}

// delivered drains, lets groups read, and returns the entries that the last one was given.
func (b *rig) delivered(groups ...string) (given []Entry) {
	b.Helper()
	b.drain(100)
	for _, group := range groups {
		given = b.read(group, "c", 100)
	}
	return given
}

func (b *rig) wantDelivered(groups []string, want ...string) []Entry {
	b.Helper()
	given := b.delivered(groups...)
	wantList(b, "delivered", ids(given), want...)
	return given
}

func heldOf(es ...Entry) (held []Held) {
	for _, e := range es {
		held = append(held, Held{Entry: e.EntryID, Key: e.Extra[FieldKey]})
	}
	return held
}

// wantNoTurns checks that no message is in flight, or waits for a key.
func (b *rig) wantNoTurns() {
	b.Helper()
	wantList(b, "turns", b.texts("ZRANGE", b.k.Turns, "0", "-1"))
}

// Of the messages with one key, one is in flight at a time, in due order, including messages that come while others
// wait. Messages of other keys are not affected.
func TestOneMessageOfAKeyAtATimeInDueOrder(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("a3", "a", 5), b.keyed("a1", "a", 9), b.keyed("b1", "b", 7))
		b.enqueue(Item{ID: "free", When: At(time.UnixMilli(b.now() - 8000))})
		es := b.wantDelivered(g, "a1", "free", "b1")
		b.enqueue(b.keyed("a2", "a", 6))
		b.wantDelivered(g)
		token := b.token()
		wantList(b, "acknowledged", b.ack("g", heldOf(es...)...), true, true, true)
		redistest.Want(b, "woke the bridge", b.token() != token, true)
		for _, id := range []string{"a2", "a3"} {
			one := b.wantDelivered(g, id)
			redistest.Want(b, "payload", string(one[0].Payload), "payload of "+id)
			b.wantDelivered(g)
			b.ack("g", heldOf(one...)...)
		}
		b.wantDelivered(g)
		b.wantNoTurns()
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
	})
}

// A key is busy until every group is done with its message. A retry keeps it, unless the policy says otherwise.
func TestKeyIsKeptUntilEveryGroupIsDone(t *testing.T) {
	for _, skip := range []bool{false, true} {
		t.Run(fmt.Sprint("skip ", skip), func(t *testing.T) {
			everywhere(t, func(b *rig) {
				groups := []string{"g", "h"}
				b.groups(groups...)
				if skip {
					b.do("HSET", b.k.Policy, "key_failure", "skip")
				}
				b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
				e := b.wantDelivered(groups, "a1")[0]
				redistest.Want(b, "fails in g", b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x"), Retried)
				b.wantDelivered(groups)
				b.ack("h", heldOf(e)...)
				retry := "a1" + Separator + "g" + Separator + e.EntryID
				if skip {
					next := b.wantDelivered(groups, "a2")[0]
					b.do("ZADD", b.k.Due, "5", retry)
					b.wantDelivered(groups)
					b.ack("g", heldOf(next)...)
					b.wantDelivered(groups)
					b.ack("h", heldOf(next)...)
				} else {
					b.wantDelivered(groups)
					b.do("ZADD", b.k.Due, "5", retry)
				}
				again := b.wantDelivered(groups, "a1")[0]
				redistest.Want(b, "attempt", again.Attempt, 2)
				b.wantDelivered(groups)
				redistest.Want(b, "released in g", b.fail("g", again.EntryID, ActionRelease, "", ""), Released)
				b.ack("h", heldOf(again)...)
				if !skip {
					again = b.wantDelivered(groups, "a1")[0] // before a2: a released message keeps its key
				} else {
					again = b.wantDelivered(groups, "a1")[0]
				}
				b.ack("h", heldOf(again)...)
				b.wantDelivered(groups)
				redistest.Want(b, "given up", b.fail("g", again.EntryID, ActionDead, "gave_up", "x"), Dead)
				if !skip {
					next := b.wantDelivered(groups, "a2")[0]
					for _, g := range groups {
						b.ack(g, heldOf(next)...)
					}
				}
				b.wantDelivered(groups)
				b.wantNoTurns()
				b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0 h=0", groups...)
			})
		})
	}
}

// A message that leaves otherwise than by an exit of its holder also gives up its turn: at once if a script does it,
// else with the sweep.
func TestKeyGoesOnWhateverBecomesOfItsMessage(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		for _, c := range []struct {
			what  string
			do    func(e Entry)
			sweep bool
		}{
			{"XACK by another client", func(e Entry) { b.do("XACK", b.k.Stream, "g", e.EntryID) }, true},
			{"XACK and XDEL", func(e Entry) {
				b.do("XACK", b.k.Stream, "g", e.EntryID)
				b.do("XDEL", b.k.Stream, e.EntryID)
			}, true},
			{"the key was not told", func(e Entry) { b.ack("g", Held{Entry: e.EntryID}) }, true},
			{"reclaimed, and dead", func(e Entry) {
				b.abandon("g", "c", e.EntryID)
				b.do("XCLAIM", b.k.Stream, "g", "c", "0", e.EntryID, "IDLE", "3600000", "RETRYCOUNT", "9", "JUSTID")
				redistest.Want(b, "dead", b.reclaim("g", time.Minute).Dead, 1)
			}, false},
			{"its retry is cancelled", func(e Entry) {
				b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
				b.wantDelivered(g)
				_, found, err := CancelRetries(b.ctx, b.c, b.k, Walk{Limit: 1000}, []string{e.ID})
				if err != nil || len(found) != 1 {
					b.Fatal(found, err)
				}
			}, false},
			{"its retry is deleted", func(e Entry) {
				b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
				b.do("ZREM", b.k.Due, e.ID+Separator+"g"+Separator+e.EntryID)
			}, true},
			{"its retry expires", func(e Entry) {
				b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
				wantList(b, "expired", b.expire(e.ID+Separator+"g"+Separator+e.EntryID), ExpireNow)
				redistest.Want(b, "dead", b.drain(10).Dead, 1)
			}, false},
		} {
			b.do("DEL", b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta, b.k.Turns)
			b.groups(g...)
			b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
			c.do(b.wantDelivered(g, "a1")[0])
			if c.sweep {
				b.wantDelivered(g)
				token := b.token()
				redistest.Want(b, c.what+": passed on", b.passTurns().Moved, 1)
				redistest.Want(b, c.what+": woke the bridge", b.token() != token, true)
			}
			b.Log(c.what)
			b.ack("g", heldOf(b.wantDelivered(g, "a2")...)...)
			b.wantNoTurns()
		}
	})
}

// passTurns sweeps all keys.
func (b *rig) passTurns() (sum TurnsPassed) {
	b.Helper()
	var done TurnsPassed
	for keys, members, places := false, false, false; !keys || !members || !places; {
		var err error
		if done, err = PassTurns(b.ctx, b.c, b.k, done, 100); err != nil {
			b.Fatal(err)
		}
		sum.Freed, sum.Moved = sum.Freed+done.Freed, sum.Moved+done.Moved
		keys, members, places = keys || done.Cursor == "", members || done.Rank == 0, places || done.Place == ""
	}
	return sum
}

// A message that waits for its key can be cancelled, moved, replaced and exported like one that is not due yet, and
// finds its place in line again.
func TestWhoWaitsForAKeyCanBeChanged(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8), b.keyed("a3", "a", 7), b.keyed("a4", "a", 6), b.keyed("a5", "a", 5),
			b.keyed("plain", "a", 8))
		first := b.wantDelivered(g, "a1")
		for _, key := range []string{b.k.Payload, b.k.Meta} { // plain commands leave its place behind
			b.do("HDEL", key, "plain")
		}
		b.do("ZREM", b.k.Due, "plain")
		if _, waits := DueScore(b.dueOf("a2")); !waits {
			b.Fatalf("a2 does not wait: %f", b.dueOf("a2"))
		}
		if done, err := Cancel(b.ctx, b.c, b.k, []string{"a2"}, Durability{}); err != nil || !done[0] {
			b.Fatal(done, err)
		}
		_, moved, err := Reschedule(b.ctx, b.c, b.k, "a3", At(time.UnixMilli(b.now()-5500)), Durability{})
		if err != nil || !moved {
			b.Fatal(moved, err)
		}
		later := b.keyed("a4", "a", 4)
		later.Dedup = ReplaceLater
		sooner := b.keyed("a5", "a", 6)
		sooner.Dedup = ReplaceLater
		wantList(b, "replaced", b.enqueue(later, sooner), Replaced, Duplicate)
		b.wantDelivered(g)
		b.ack("g", heldOf(first...)...)
		for _, id := range []string{"a3", "a5", "a4"} {
			b.ack("g", heldOf(b.wantDelivered(g, id)...)...)
		}
		b.wantNoTurns()
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
	})
}

// If somebody deletes the notes of waiting messages, the sweep makes these due again, a part at a time, and drain puts
// them in line.
func TestLineIsMadeAnewWhereItWasDeleted(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		var items []Item
		for i := range 300 {
			items = append(items, b.keyed(fmt.Sprintf("m%03d", i), fmt.Sprint("key", i%3), 1000-int64(i)))
		}
		b.enqueue(items...)
		var order []string
		for len(order) < 300 {
			b.drain(1000)
			if len(order) == 30 {
				b.do("DEL", b.k.Turns)
			}
			b.passTurns()
			es := b.read("g", "c", 100)
			if len(es) == 0 {
				continue
			}
			order = append(order, ids(es)...)
			b.ack("g", heldOf(es...)...)
		}
		if !slices.IsSorted(order[33:]) {
			b.Errorf("out of order: %v", order[33:])
		}
		b.passTurns()
		b.wantNoTurns()
	})
}

// If somebody overwrites the meta of a waiting message, no note has its key any more: it waited for ever. The sweep
// makes it due, and drain decides what becomes of it. A due time that never comes stays.
func TestWhoWaitsAndLosesItsKeyGoesOn(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8), b.keyed("a3", "a", 7), b.keyed("a4", "a", 6))
		b.wantDelivered([]string{"g"}, "a1")
		b.do("HSET", b.k.Meta, "a2", "junk", "a3", `{"h:a":"b"}`)
		b.do("HDEL", b.k.Meta, "a4")
		b.do("DEL", b.k.Turns)
		b.do("ZADD", b.k.Due, "7e15", "never")
		redistest.Want(b, "had go on", b.passTurns().Moved, 3)
		redistest.Want(b, "never", b.dueOf("never"), 7e15)
		b.wantDelivered([]string{"g"}, "a3", "a4")
		b.wantState("due=1 payload=0 meta=0 stream=3 dead=1 g=3", "g")
	})
}

// An invalid key makes a dead letter. If turns has another type, only messages with a key stop.
func TestOddKeys(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for i, key := range []string{"", strings.Repeat("x", 257), "a\\u0001b", "a\\u001fb"} {
			b.do("HSET", b.k.Meta, fmt.Sprint("m", i), `{"key":"`+key+`"}`)
			b.do("ZADD", b.k.Due, "5", fmt.Sprint("m", i))
		}
		redistest.Want(b, "dead", b.drain(10).Dead, 4)
		for i, e := range b.entries(b.k.Dead) {
			redistest.Want(b, fmt.Sprint("reason ", i), e.Reason+": "+e.Error, "malformed: key is empty, longer than 256 bytes, or holds control characters")
		}
		for _, key := range []string{strings.Repeat("x", 256), "Zoë 7", "a b", "a", "a!", "a\\\"b"} {
			b.enqueue(b.keyed("1 of "+key, key, 9), b.keyed("2 of "+key, key, 8))
		}
		es := b.delivered("g")
		redistest.Want(b, "in flight", len(es), 6)
		b.ack("g", heldOf(es...)...)
		es = b.delivered("g")
		redistest.Want(b, "in flight", len(es), 6)
		b.ack("g", heldOf(es...)...)
		b.wantNoTurns()

		b.do("SET", b.k.Turns, "x")
		b.enqueue(b.keyed("a1", "a", 1))
		b.enqueue(Item{ID: "before", When: At(time.UnixMilli(b.now() - 5000))})
		d := b.drain(10)
		redistest.Want(b, "moved beside wrong turns", d.Moved, 1)
		if !strings.Contains(d.Refusal, "WRONGTYPE") {
			b.Errorf("refusal %q", d.Refusal)
		}
		b.do("DEL", b.k.Turns)
		es = b.delivered("g")
		b.do("SET", b.k.Turns, "x")
		wantList(b, "acknowledged beside wrong turns", b.ack("g", heldOf(es...)...), true, true)
	})
}

// A due message goes behind an older one of its key that waits, even if none is in flight.
func TestOlderOneOfAKeyGoesFirst(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
		e := b.wantDelivered(g, "a1")[0]
		b.wantDelivered(g)
		b.do("XACK", b.k.Stream, "g", e.EntryID)
		b.do("DEL", b.k.Stream)
		b.do("ZREM", b.k.Turns, "a"+Separator+"busy"+Separator+e.EntryID)
		b.groups(g...)
		b.enqueue(b.keyed("a3", "a", 7))
		for _, id := range []string{"a2", "a3"} {
			b.drain(10) // a3 makes way
			b.ack("g", heldOf(b.wantDelivered(g, id)...)...)
		}
		b.wantNoTurns()
	})
}

// A released message comes back before the next one of its key, whatever the policy says of failures.
func TestReleaseKeepsItsKey(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.do("HSET", b.k.Policy, "key_failure", "skip")
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
		e := b.wantDelivered(g, "a1")[0]
		b.wantDelivered(g)
		redistest.Want(b, "outcome", b.fail("g", e.EntryID, ActionRelease, "", ""), Released)
		for _, id := range []string{"a1", "a2"} {
			b.ack("g", heldOf(b.wantDelivered(g, id)...)...)
		}
		b.wantNoTurns()
	})
}

// 9,000 messages that were cancelled while they waited do not hold up the ones behind them.
func TestManyCancelledInLineArePassedOver(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("first", "a", 9))
		e := b.wantDelivered(g, "first")[0]
		cancelled := 9000
		if b.inProcess() { // that server is slow
			cancelled = 2500
		}
		var lines []string
		for i := range cancelled {
			lines = append(lines, "0", fmt.Sprintf("a%swait%s%016d%sgone%d", Separator, Separator, i, Separator, i))
		}
		b.do(append([]string{"ZADD", b.k.Turns}, lines...)...)
		b.enqueue(b.keyed("last", "a", 1))
		b.wantDelivered(g)
		b.ack("g", heldOf(e)...)
		for range 4 {
			b.passTurns()
		}
		b.ack("g", heldOf(b.wantDelivered(g, "last")...)...)
		b.wantNoTurns()
	})
}

// Members that somebody else writes into turns hold up no message for good. A message ID like that of the entry in
// flight is no turn of its own.
func TestOddTurns(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		for i, odd := range []string{"", "aaaa", "busy", "zzzz", "wait", "wait" + Separator + "xx", "busy" + Separator} {
			key := fmt.Sprint("k", i)
			b.do("ZADD", b.k.Turns, "0", key+Separator+odd)
			b.enqueue(b.keyed("m1 "+key, key, 9), b.keyed("m2 "+key, key, 8))
			var given []string
			for range 6 {
				es := b.delivered(g...)
				given = append(given, ids(es)...)
				b.ack("g", heldOf(es...)...)
				b.passTurns()
			}
			wantList(b, fmt.Sprintf("delivered beside %q", odd), given, "m1 "+key, "m2 "+key)
		}
		b.passTurns()
		b.wantNoTurns()
		b.enqueue(b.keyed("a1", "a", 9))
		e := b.wantDelivered(g, "a1")[0]
		b.enqueue(b.keyed(e.EntryID, "a", 8))
		b.wantDelivered(g)
	})
}

// The history records the due time of a waiting message, not its score meanwhile.
func TestHistoryTellsTheDueTimeOfWhoWaits(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8), b.keyed("a3", "a", 7))
		b.wantDelivered(g, "a1")
		_, was := DueScore(b.dueOf("a2"))
		redistest.Want(b, "waits", was, true)
		b.keepHistory()
		if _, moved, err := Reschedule(b.ctx, b.c, b.k, "a2", After(time.Hour), Durability{}); err != nil || !moved {
			b.Fatal(moved, err)
		}
		wantList(b, "expired", b.expire("a3"), ExpireNow)
		for _, e := range b.raw(b.k.History) {
			for _, f := range e.FieldValues {
				if strings.Contains(f.Value, `"was_ms":"4`) {
					b.Errorf("told: %s", f.Value)
				}
			}
		}
		redistest.Want(b, "told", len(b.told()), 2)
	})
}

// One call may end more messages with keys than can be looked up in the pending lists of all groups at once.
func TestManyKeysAtOnceAreAllPassedOn(t *testing.T) {
	everywhere(t, func(b *rig) {
		const n = 200 // with 40 groups that hold something: twice as many as one look is for
		groups := []string{"g"}
		for i := range 39 {
			groups = append(groups, fmt.Sprint("other", i))
		}
		b.groups(groups...)
		b.do("XADD", b.k.Stream, "*", "id", "held")
		for _, g := range groups {
			b.read(g, "c", 1)
		}
		var items []Item
		for i := range n {
			key := fmt.Sprint("k", i)
			items = append(items, b.keyed("1 "+key, key, 9), b.keyed("2 "+key, key, 8))
		}
		b.enqueue(items...)
		b.drain(1000)
		var held []Held
		for _, g := range groups {
			es := b.read(g, "c", n)
			redistest.Want(b, "given to "+g, len(es), n)
			held = heldOf(es...)
			b.ack(g, held...)
		}
		redistest.Want(b, "next ones", b.drain(1000).Moved, n)
	})
}

// A message that waits for its key and leaves the line, or moves, removes its place. While the key is held, nobody
// passes by to clear it away: 1,001 cancelled messages left 1,001 places.
func TestWhoLeavesTheLineTakesItsPlaceWithIt(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		must := func(ok bool, err error) {
			b.Helper()
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
		}
		replace := func(dedup Dedup, ago int64) func(string) {
			return func(member string) {
				item := b.keyed(member, "b", ago) // with another key: its place is in the line of the old one
				item.Dedup = dedup
				wantList(b, "verdict", b.enqueue(item), Replaced)
			}
		}
		for _, c := range []struct {
			what  string
			retry bool // a retry that waits: the next message of the key became due meanwhile
			leave func(member string)
			left  int // members of the schedule then
		}{
			{"cancel", false, func(member string) {
				done, err := Cancel(b.ctx, b.c, b.k, []string{member, "nobody"}, Durability{})
				must(done[0] && !done[1], err)
			}, 0},
			{"cancel a retry", true, func(member string) {
				done, err := Cancel(b.ctx, b.c, b.k, []string{member}, Durability{})
				must(done[0], err)
			}, 0},
			{"cancel retries", true, func(member string) {
				_, found, err := CancelRetries(b.ctx, b.c, b.k, Walk{Limit: 1000}, []string{ParseMember(member).ID})
				must(len(found) == 1, err)
			}, 0},
			{"reschedule", false, func(member string) {
				_, moved, err := Reschedule(b.ctx, b.c, b.k, member, After(time.Hour), Durability{})
				must(moved, err)
			}, 1},
			{"reschedule each", true, func(member string) {
				moved, err := RescheduleEach(b.ctx, b.c, b.k, []string{member}, []When{After(time.Hour)})
				must(moved[0], err)
			}, 1},
			{"reschedule retries", true, func(member string) {
				_, found, err := RescheduleRetries(b.ctx, b.c, b.k, Walk{Limit: 1000}, After(time.Hour),
					[]string{ParseMember(member).ID})
				must(len(found) == 1, err)
			}, 1},
			{"expire", false, func(member string) { wantList(b, "expired", b.expire(member), ExpireNow) }, 1},
			{"replace", false, replace(Replace, -60), 1},
			{"replace by a later one", false, replace(ReplaceLater, -60), 1},
			{"replace by an earlier one", false, replace(ReplaceEarlier, 60), 1},
			{"replace by one that is ready at once", false, func(member string) {
				item := Item{ID: member, When: After(0), Dedup: Replace}
				wantList(b, "verdict", b.enqueue(item), Ready)
			}, 0},
		} {
			b.do("DEL", b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta, b.k.Turns)
			b.groups(g...)
			b.do("HSET", b.k.Policy, "key_failure", "skip")
			member, holder := "a2", "a1"
			b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
			first := b.wantDelivered(g, "a1")[0]
			b.drain(10)
			if c.retry {
				b.fail("g", first.EntryID, ActionRetry, ReasonMaxAttempts, "x")
				member, holder = "a1"+Separator+"g"+Separator+first.EntryID, "a2"
				first = b.wantDelivered(g, "a2")[0]
				b.do("ZADD", b.k.Due, "5", member)
				b.drain(10)
			}
			if _, waits := DueScore(b.dueOf(member)); !waits {
				b.Fatalf("%s: %q does not wait", c.what, member)
			}
			redistest.Want(b, c.what+": notes before", b.count("ZCARD", b.k.Turns), 2)
			c.leave(member)
			wantList(b, c.what+": turns of "+holder, b.texts("ZRANGE", b.k.Turns, "0", "-1"),
				"a"+Separator+"busy"+Separator+first.EntryID)
			redistest.Want(b, c.what+": scheduled", b.count("ZCARD", b.k.Due), c.left)
		}
	})
}

// A retry that holds its key is cancelled by its name: the next message of the key becomes due at once.
func TestCancelOfARetryThatHoldsItsKeyPassesItOn(t *testing.T) {
	everywhere(t, func(b *rig) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("a1", "a", 9), b.keyed("a2", "a", 8))
		e := b.wantDelivered(g, "a1")[0]
		b.drain(10)
		b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
		token := b.token()
		done, err := Cancel(b.ctx, b.c, b.k, []string{"a1" + Separator + "g" + Separator + e.EntryID}, Durability{})
		if err != nil || !done[0] {
			b.Fatal(done, err)
		}
		redistest.Want(b, "woke the bridge", b.token() != token, true)
		b.ack("g", heldOf(b.wantDelivered(g, "a2")...)...)
		b.wantNoTurns()
	})
}

// Plain commands, older clients, and users who may not write turns leave places behind. The sweep removes them while
// the key is held, a part at a time, and keeps those of waiting messages.
func TestSweepClearsPlacesThatNobodyIsIn(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		items := []Item{b.keyed("held", "a", 1000)}
		for i := range 250 {
			items = append(items, b.keyed(fmt.Sprintf("m%03d", i), "a", 900-int64(i)))
		}
		b.enqueue(items...)
		b.wantDelivered([]string{"g"}, "held")
		for b.drain(1000); b.count("ZCARD", b.k.Turns) < 251; {
			b.drain(1000)
		}
		for i := range 250 {
			if i%2 == 0 {
				b.do("ZREM", b.k.Due, fmt.Sprintf("m%03d", i))
			}
		}
		b.do("ZADD", b.k.Due, "XX", ms(b.now()+60_000), "m001")
		before := b.count("ZCARD", b.k.Turns)
		one, err := PassTurns(b.ctx, b.c, b.k, TurnsPassed{}, 100)
		if err != nil {
			b.Fatal(err)
		}
		if cleared := before - b.count("ZCARD", b.k.Turns); cleared == 0 || cleared > 100 || one.Place == "" {
			b.Errorf("one step cleared %d of %d, and goes on behind %q", cleared, before, one.Place)
		}
		b.passTurns()
		redistest.Want(b, "places and the holder", b.count("ZCARD", b.k.Turns), 125)
	})
}

// A call looks up the entries of a limited number of keys. The number shrinks with each group that holds anything.
// Later keys used to be skipped in every round, for as long as the first keys stayed in flight.
func TestSweepWithManyGroupsComesToEveryKey(t *testing.T) {
	everywhere(t, func(b *rig) {
		if b.inProcess() { // too slow for so many groups
			return
		}
		const groups, keys = 60, 100
		names := []string{"g"}
		for i := range groups {
			names = append(names, fmt.Sprintf("g%02d", i))
		}
		b.groups(names...)
		items := []Item{}
		for i := range keys {
			items = append(items, b.keyed(fmt.Sprintf("a%03d", i), fmt.Sprintf("k%03d", i), 9))
		}
		b.enqueue(items...)
		b.drain(keys)
		given := map[string]Entry{}
		for _, e := range b.read("g", "c", keys) {
			given[e.ID] = e
		}
		for _, name := range names[1:] {
			all := b.read(name, "c", keys)
			b.xack(name, all[1:]...) // it holds the entry of k000
		}
		b.enqueue(b.keyed("next", "k090", 8))
		b.drain(1)
		b.xack("g", given["a090"])
		b.passTurns()
		b.wantDelivered([]string{"g"}, "next")
	})
}
