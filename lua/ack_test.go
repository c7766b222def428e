package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// ack calls Ack, which must not fail. It returns for each entry whether it was acknowledged.
func (b *testQueue) ack(group string, held ...Held) []bool {
	b.Helper()
	got, err := Ack(b.ctx, b.c, b.k, group, held)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

// Regression: a late acknowledgement took an entry of another message, and nobody handled that message:
//
//  1. A worker holds the entry of a message.
//  2. A failover loses that entry. Its ID is given to an entry that a plain XADD adds, without a field id. The group
//     reads it.
//  3. The late acknowledgement of the old message arrives. Before, its message ID was not compared, because the entry
//     has no field id.
//
// Now the entry ID counts as the message ID of such an entry, as it always did in retry.
func TestAckComparesTheEntryIDOfAnEntryWithoutMessageID(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// Both parts of an entry ID may reach 2^64 - 1. Before, the scripts compared them as numbers of Lua, which cannot tell
// neighbours apart from 2^53 on.
func TestAckComparesEntryIDsExactly(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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

// When the last of 20 groups acknowledges 200 entries, the call frees them all, and quickly: the cost of freeing grows
// with groups × entries.
func TestAckWithManyGroupsIsBounded(t *testing.T) {
	onServers(t, func(b *testQueue) {
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
		if took > time.Second {
			b.Errorf("an ack of 200 entries with 20 groups took %v", took)
		}
	})
}

// A call acknowledges all its entries, but frees a limited number of them. Trim must free the others.
func TestAckBeyondItsBoundLeavesEntriesToTrim(t *testing.T) {
	onServers(t, func(b *testQueue) {
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
		if left > 2000 || left < 1000 {
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

// Before, an acknowledgement of two distant entries read a range of 1,000 pending entries of every group: a quarter of
// a second with 200 groups that held 1,100 entries each. Now the length of the range follows from the number of
// acknowledged entries, and both entries must still be freed at once.
func TestAckOfDistantEntriesFreesThem(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueueMany(40, 1)
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
