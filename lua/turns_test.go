package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// keyed returns a message with an ordering key that was due ago seconds ago.
func (b *testQueue) keyed(id, key string, ago int64) Item {
	return Item{ID: id, Payload: []byte("payload of " + id), Meta: `{"key":"` + key + `"}`,
		When: At(time.UnixMilli(b.now() - 1000*ago))}
}

// drainAndRead drains, reads for each group, and returns the entries of the last group.
func (b *testQueue) drainAndRead(groups ...string) (given []Entry) {
	b.Helper()
	b.drain(100)
	for _, group := range groups {
		given = b.read(group, "c", 100)
	}
	return given
}

// wantDelivered drains, reads for each group, and checks the IDs that the last group got.
func (b *testQueue) wantDelivered(groups []string, want ...string) []Entry {
	b.Helper()
	given := b.drainAndRead(groups...)
	wantList(b, "delivered", ids(given), want...)
	return given
}

// heldOf returns the arguments of Ack for entries, with their ordering keys.
func heldOf(es ...Entry) (held []Held) {
	for _, e := range es {
		held = append(held, Held{Entry: e.EntryID, Key: e.Extra[FieldKey]})
	}
	return held
}

// wantNoTurns checks that no message is in flight, or waits for a key.
func (b *testQueue) wantNoTurns() {
	b.Helper()
	wantList(b, "turns", b.texts("ZRANGE", b.k.Turns, "0", "-1"))
}

// passTurns sweeps all keys.
func (b *testQueue) passTurns() (sum TurnsPassed) {
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

// If somebody deletes the notes of waiting messages, the sweep makes these due again, a part at a time, and drain puts
// them in line.
func TestDeletedTurnsAreRestoredBySweepAndDrain(t *testing.T) {
	onServers(t, func(b *testQueue) {
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
		// The next three, one of each key, may have been in flight when the notes were deleted.
		if !slices.IsSorted(order[33:]) {
			b.Errorf("out of order: %v", order[33:])
		}
		b.passTurns()
		b.wantNoTurns()
	})
}

// An invalid key makes a dead letter. If turns has another type, only messages with a key stop.
func TestInvalidKeysBecomeDeadLetters(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		for i, key := range []string{"", strings.Repeat("x", 257), "a\\u0001b", "a\\u001fb"} {
			b.do("HSET", b.k.Meta, fmt.Sprint("m", i), `{"key":"`+key+`"}`)
			b.do("ZADD", b.k.Due, "5", fmt.Sprint("m", i))
		}
		redistest.Want(b, "dead", b.drain(10).Dead, 4)
		for i, e := range b.letters() {
			redistest.Want(b, fmt.Sprint("reason ", i), e.Reason+": "+e.Error, "malformed: key is empty, longer than 256 bytes, or holds control characters")
		}
		for _, key := range []string{strings.Repeat("x", 256), "Zoë 7", "a b", "a", "a!", "a\\\"b"} {
			b.enqueue(b.keyed("1 of "+key, key, 9), b.keyed("2 of "+key, key, 8))
		}
		es := b.drainAndRead("g")
		redistest.Want(b, "in flight", len(es), 6)
		b.ack("g", heldOf(es...)...)
		es = b.drainAndRead("g")
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
		es = b.drainAndRead("g")
		b.do("SET", b.k.Turns, "x")
		wantList(b, "acknowledged beside wrong turns", b.ack("g", heldOf(es...)...), true, true)
	})
}

// 9,000 messages that were cancelled while they waited do not hold up the ones behind them.
func TestManyCancelledWaitersDelayNobody(t *testing.T) {
	onServers(t, func(b *testQueue) {
		g := []string{"g"}
		b.groups(g...)
		b.enqueue(b.keyed("first", "a", 9))
		e := b.wantDelivered(g, "first")[0]
		var lines []string
		for i := range 9000 {
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
func TestForeignMembersOfTurnsHoldUpNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		g := []string{"g"}
		b.groups(g...)
		for i, odd := range []string{"", "aaaa", "busy", "zzzz", "wait", "wait" + Separator + "xx", "busy" + Separator} {
			key := fmt.Sprint("k", i)
			b.do("ZADD", b.k.Turns, "0", key+Separator+odd)
			b.enqueue(b.keyed("m1 "+key, key, 9), b.keyed("m2 "+key, key, 8))
			var given []string
			for range 6 {
				es := b.drainAndRead(g...)
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
	everywhere(t, func(b *testQueue) {
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
				// The score of a waiting message is 4e15 more than its due time.
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
	onServers(t, func(b *testQueue) {
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

// A call looks up the entries of a limited number of keys. The number shrinks with each group that holds anything.
// Before, later keys were skipped in every round, for as long as the first keys stayed in flight.
func TestSweepWithManyGroupsComesToEveryKey(t *testing.T) {
	onServers(t, func(b *testQueue) {
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

// A due message goes behind an older one of its key that waits, even if none is in flight.
func TestOlderMessageOfAKeyGoesFirst(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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
