package lua

import (
	"slices"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// add adds n entries, and returns their IDs.
func (b *testQueue) add(n int) (ids []string) {
	b.Helper()
	for _, m := range b.all(slices.Repeat([][]string{{"XADD", b.k.Stream, "*", "id", "m"}}, n)) {
		id, err := m.ToString()
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// If nobody trims, acknowledgements themselves free entries: at most one stream node of 100 entries is left.
func TestAckLeavesAtMostANode(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("XGROUP", "CREATE", b.k.Stream, "g", "0", "MKSTREAM")
		for range 5 {
			var batch []Held
			for _, id := range b.add(250) {
				batch = append(batch, Held{Entry: id})
			}
			if err := b.c.Do(b.ctx, b.c.B().Xreadgroup().Group("g",
				"c").Count(250).Streams().Key(b.k.Stream).Id(">").Build()).Error(); err != nil {
				b.Fatal(err)
			}
			if _, err := Ack(b.ctx, b.c, b.k, "g", batch); err != nil {
				b.Fatal(err)
			}
			if n := b.count("XLEN", b.k.Stream); n > 100 {
				b.Errorf("%d entries left that nobody needs", n)
			}
		}
	})
}

// heldBy returns the arguments of Ack for entries, without message IDs.
func heldBy(entries []Entry) (held []Held) {
	for _, e := range entries {
		held = append(held, Held{Entry: e.EntryID})
	}
	return held
}

// An entry that another program adds with an ID of its own may have a sequence number beyond 2^53. Before, the walks
// through a stream did not get past such an entry: no recurrence of its queue was planned any more, and a cancel never
// ended.
func TestWalksPassEntriesWithLargeSequenceNumbers(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, seq := range []string{"99999999999999", "999999999999999", "1795286052123456789", "18446744073709551615"} {
			if b.inProcess() && len(seq) > 18 {
				continue // this server takes no larger sequence numbers
			}
			b.do("DEL", b.k.Stream)
			b.groups("holds", "unread")
			b.do("XADD", b.k.Stream, "1-1", "id", "held")
			b.do("XADD", b.k.Stream, "5-"+seq, "id", "m")
			b.do("XADD", b.k.Stream, "6-1", "id", "last")
			redistest.Want(b, "unfinished "+seq, b.unfinished(&Unfinished{}, "absent"), false)

			es := b.read("holds", "c", 3)
			b.read("unread", "c", 3)
			for _, group := range []string{"holds", "unread"} {
				b.xack(group, es[1:]...)
			}
			cursor, freed := "", 0
			for range 3 {
				trimmed := b.trim(cursor, 1, 1000)
				cursor, freed = trimmed.Cursor, freed+trimmed.Freed
			}
			redistest.Want(b, "freed behind the held entry "+seq, freed, 2)
		}
	})
}

// A cancel walks through the stream as well.
func TestACancelPassesEntriesWithLargeSequenceNumbers(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "5-999999999999999", "id", "m")
		b.do("XADD", b.k.Stream, "6-1", "id", "last")
		var walks int
		for w := (EntryWalk{Limit: 1}); w.Cursor != "" || walks == 0; walks++ {
			var err error
			if w, _, err = CancelEntries(b.ctx, b.c, b.k, w, []string{"last"}, Durability{}); err != nil || walks > 10 {
				b.Fatal(walks, err)
			}
		}
		redistest.Want(b, "entries that are left", len(b.entries(b.k.Stream)), 1)
	})
}
