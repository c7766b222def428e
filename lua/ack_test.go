package lua

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func (b *rig) ack(group string, held ...Held) []bool {
	b.Helper()
	got, err := Ack(b.ctx, b.c, b.k, group, held)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func TestAckFreesWhenTheLastGroupIsDone(t *testing.T) {
	everywhere(t, func(b *rig) {
		for n := 1; n <= 3; n++ {
			b := b.queue(fmt.Sprint("q", n))
			groups := []string{"a", "b", "c"}[:n]
			es := b.deliver(groups, "m1", "m2", "m3")
			held := []Held{{Entry: es[0].EntryID, ID: "m1"}, {Entry: es[2].EntryID}, {Entry: es[0].EntryID}}
			for i, g := range groups {
				wantList(b, "acknowledged", b.ack(g, held...), true, true, false)
				left := 3
				if i == n-1 {
					left = 1
				}
				redistest.Want(b, fmt.Sprintf("entries after %d of %d groups", i+1, n), b.count("XLEN", b.k.Stream), left)
			}
			wantList(b, "left", ids(b.entries(b.k.Stream)), "m2")
		}
	})
}

// Groups are read inside the script: a group that was just created counts, and a group that was not given an entry
// needs it.
func TestAckKeepsWhatAnotherGroupNeeds(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"a"}, "m1", "m2", "m3")
		b.groups("late")
		b.read("late", "c1", 1) // m1 is pending there, m2 and m3 were never given to it
		var held []Held
		for _, e := range es {
			held = append(held, Held{Entry: e.EntryID})
		}
		slices.Reverse(held)
		b.ack("a", held...)
		b.wantState("due=0 payload=0 meta=0 stream=3 dead=0 a=0 late=1", "a", "late")
		b.read("late", "c1", 1)
		b.ack("late", Held{Entry: es[1].EntryID})
		wantList(b, "left", ids(b.entries(b.k.Stream)), "m1", "m3")
		b.read("late", "c1", 1)
		b.ack("late", Held{Entry: es[0].EntryID}, Held{Entry: es[2].EntryID})
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 a=0 late=0", "a", "late")
	})
}

func TestAckComparesTheMessageID(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2")
		b.do("XADD", b.k.Stream, "*", "color", "red")
		anonymous := b.read("g", "c1", 1)[0]
		got := b.ack("g", Held{Entry: es[0].EntryID, ID: "another"}, Held{Entry: es[1].EntryID, ID: "m2"},
			Held{Entry: anonymous.EntryID, ID: anonymous.ID})
		wantList(b, "acknowledged", got, false, true, true)
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
		n, owner, _ := b.counter("g", es[0].EntryID)
		if n != 1 || owner != "c1" {
			b.Fatalf("the other message was delivered %d times, to %s", n, owner)
		}
	})
}

// A late acknowledgement took an entry of another message, which was then never handled:
//
//  1. A worker holds the entry of a message.
//  2. A failover loses that entry. Its ID is given to an entry that a plain XADD adds, without a field id. The group
//     reads it.
//  3. The late acknowledgement of the old message arrives. It was not compared, because there was no field to compare
//     with.
//
// retry always compared.
func TestAckComparesTheMessageIDWithAnEntryIDWhereThatIsAll(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "*", "color", "red")
		anonymous := b.read("g", "c1", 1)[0]
		held := Held{Entry: anonymous.EntryID, ID: "m1"}
		wantList(b, "acknowledged", b.ack("g", held), false)
		redistest.Want(b, "outcome of retry", b.retry("g", policy, Failure{Held: held, Action: ActionRetry, Delay: -1}), Lost)
		redistest.Want(b, "pending", b.pending("g"), 1)
		wantList(b, "acknowledged", b.ack("g", Held{Entry: anonymous.EntryID, ID: anonymous.EntryID}), true)
	})
}

func TestAckOfWhatIsNotThereIsLost(t *testing.T) {
	everywhere(t, func(b *rig) {
		wantList(b, "without a stream", b.ack("g", Held{Entry: "5-1"}), false)
		es := b.deliver([]string{"g"}, "m1", "m2")
		wantList(b, "another group", b.ack("nobody", Held{Entry: es[0].EntryID}), false)
		b.do("XDEL", b.k.Stream, es[0].EntryID)
		wantList(b, "no entry", b.ack("g"))
		if b.inProcess() {
			return // there, deleting an entry removes it from the pending lists
		}
		wantList(b, "a deleted entry", b.ack("g", Held{Entry: es[0].EntryID, ID: "m1"}), true)
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}

// Entry IDs reach 2^64 in both parts. Compared as numbers, they were equal from 2^53 on.
func TestAckComparesEntryIDsExactly(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("a", "b")
		entries := []string{"9007199254740992-1", "9007199254740993-9", "9007199254740993-10",
			"9007199254740993-9007199254740993", "10000000000000000-0"}
		for _, e := range entries {
			b.do("XADD", b.k.Stream, e, "id", e, "payload", "")
		}
		b.read("a", "c", 5)
		b.read("b", "c", 2)
		for _, e := range entries {
			b.ack("a", Held{Entry: e})
		}
		b.ack("b", Held{Entry: entries[1]}, Held{Entry: entries[0]})
		wantList(b, "left", ids(b.entries(b.k.Stream)), entries[2:]...)
		b.read("b", "c", 5)
		b.ack("b", Held{Entry: entries[4]}, Held{Entry: entries[2]}, Held{Entry: entries[3]})
		redistest.Want(b, "left", b.count("XLEN", b.k.Stream), 0)
	})
}

// Freeing costs groups × entries. Beyond a bound it is left to trim; the acknowledgement is not.
func TestAckWithManyGroupsIsBounded(t *testing.T) {
	everywhere(t, func(b *rig) {
		var groups, names []string
		for i := range 20 {
			groups = append(groups, fmt.Sprint("g", i))
		}
		for i := range 201 {
			names = append(names, fmt.Sprint("m", i))
		}
		var held []Held
		var items []Item
		for _, id := range names {
			items = append(items, Item{ID: id, When: After(0)})
		}
		b.groups(groups...)
		b.enqueue(items...)
		for _, g := range groups {
			held = nil
			for _, e := range b.read(g, "c", 300) {
				held = append(held, Held{Entry: e.EntryID})
			}
		}
		for _, g := range groups[:19] {
			b.ack(g, held...)
		}
		start := time.Now()
		b.ack(groups[19], held[:200]...)
		took := time.Since(start)
		redistest.Want(b, "left after 20 × 200", b.count("XLEN", b.k.Stream), 1)
		b.ack(groups[19], held[200:]...)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0")
		if took > time.Second && !b.inProcess() {
			b.Errorf("an ack of 200 entries with 20 groups took %v", took)
		}
	})
}

func TestAckBeyondItsBoundLeavesEntriesToTrim(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("a", "b")
		args := make([]Item, 2100)
		for i := range args {
			args[i] = Item{ID: fmt.Sprint("m", i), When: After(0)}
		}
		b.enqueue(args...)
		var held []Held
		for _, g := range []string{"a", "b"} {
			held = nil
			for _, e := range b.read(g, "c", 3000) {
				held = append(held, Held{Entry: e.EntryID})
			}
			b.ack(g, held...)
		}
		redistest.Want(b, "acknowledged", b.pending("b"), 0)
		left := b.count("XLEN", b.k.Stream) // groups that hold nothing cost nothing: b trims a bounded number itself
		if left > 2000 && !b.inProcess() || left < 1000 && !b.inProcess() {
			b.Fatalf("%d of 2,100 are left to trim", left)
		}
		freed := 0
		for range 30 {
			tr, err := Trim(b.ctx, b.c, b.k, "", 1000, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			freed += tr.Freed
		}
		redistest.Want(b, "freed", freed, left)
	})
}

// 200 groups held 1,100 entries each, and two distant ones were acknowledged. A range of a thousand was read for every
// group, which took a quarter of a second. The range must follow from the acknowledged entries, and both must still be
// freed at once.
func TestAckOfDistantEntriesFreesThem(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(40, 1)
		groups := []string{"g0", "g1", "g2", "g3", "g4", "g5"}
		b.groups(groups...)
		for _, g := range groups {
			es := b.read(g, "c", 40)
			if g == "g0" {
				b.ack(g, Held{Entry: es[5].EntryID})
				continue
			}
			b.do("XACK", b.k.Stream, g, es[0].EntryID, es[38].EntryID)
		}
		redistest.Want(b, "left, held by others", b.count("XLEN", b.k.Stream), 40)
		all := b.entries(b.k.Stream)
		b.ack("g0", Held{Entry: all[38].EntryID}, Held{Entry: all[0].EntryID})
		redistest.Want(b, "left", b.count("XLEN", b.k.Stream), 38)
	})
}
