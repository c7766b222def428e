package lua

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// trim calls Trim, which must not fail.
func (b *testQueue) trim(cursor string, limit, maxBytes int) Trimmed {
	b.Helper()
	t, err := Trim(b.ctx, b.c, b.k, cursor, limit, maxBytes)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// enqueueMany enqueues n messages for now.
func (b *testQueue) enqueueMany(n, size int) {
	b.Helper()
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{ID: fmt.Sprintf("m%04d", i), When: After(0), Payload: make([]byte, size)}
	}
	b.enqueue(items...)
}

// xack acknowledges like a worker in another language, with XACK alone.
func (b *testQueue) xack(group string, entries ...Entry) {
	b.Helper()
	for _, e := range entries {
		redistest.Want(b, "XACK", b.count("XACK", b.k.Stream, group, e.EntryID), 1)
	}
}

// An entry that was read with NOACK is never pending, so it counts as acknowledged.
func TestTrimCountsNoAckAsServed(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueueMany(3, 1)
		b.groups("g")
		b.do("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "2", "STREAMS", b.k.Stream, ">")
		redistest.Want(b, "freed", b.trim("", 100, 1000).Freed, 2)
	})
}

// One entry that stays pending for an hour must not keep all later entries in memory.
func TestTrimSweepsBehindAPendingEntry(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueueMany(1000, 10)
		b.groups("a", "b")
		var held []Entry
		for _, g := range []string{"a", "b"} {
			done := []string{"XACK", b.k.Stream, g}
			for i, e := range b.read(g, "c", 900) {
				if i == 0 || i == 450 && g == "b" {
					held = append(held, e)
					continue
				}
				done = append(done, e.EntryID)
			}
			b.do(done...)
		}
		cursor, freed := "", 0
		for calls := 1; ; calls++ {
			tr := b.trim(cursor, 100, 1<<20)
			if tr.Freed > 100 {
				b.Fatalf("freed %d with a limit of 100", tr.Freed)
			}
			freed += tr.Freed
			if cursor = tr.Cursor; cursor == "" {
				break
			}
			if calls > 30 {
				b.Fatal("the sweep does not come to the end")
			}
		}
		redistest.Want(b, "freed", freed, 898)
		left := b.entries(b.k.Stream)
		wantList(b, "left", ids(left)[:3], "m0000", "m0450", "m0900")
		redistest.Want(b, "left", len(left), 102)
		// The sweep is over and finds nothing more, however often it runs.
		redistest.Want(b, "again", b.trim("", 1000, 1<<20), Trimmed{Groups: 2})
		for _, e := range held {
			b.do("XACK", b.k.Stream, "a", e.EntryID)
			b.do("XACK", b.k.Stream, "b", e.EntryID)
		}
		redistest.Want(b, "freed when they are done", b.trim("", 1000, 1<<20).Freed, 2)
	})
}

// A sweep stops after about max_bytes of entries, and later calls go on from its cursor.
func TestTrimSweepIsBoundedByBytes(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueueMany(40, 10_000)
		b.groups("g")
		es := b.read("g", "c", 40)
		b.xack("g", es[1:]...)
		first := b.trim("", 1000, 50_000)
		if first.Freed < 1 || first.Freed > 12 || first.Cursor == "" {
			b.Fatalf("with 50,000 bytes: %+v", first)
		}
		cursor, freed := first.Cursor, first.Freed
		for range 40 {
			tr := b.trim(cursor, 1000, 50_000)
			cursor, freed = tr.Cursor, freed+tr.Freed
		}
		redistest.Want(b, "freed", freed, 39)
		redistest.Want(b, "left out", b.trim("", 1000, 0), Trimmed{Groups: 1, Cursor: b.trim("", 1000, 0).Cursor})
	})
}

// With a limit below the size of a stream node, which is 100 entries, a trim removes one node at most. Before, the
// server trimmed no whole node with such a limit, and then the script trimmed everything at once.
func TestTrimOfALongHeadIsBounded(t *testing.T) {
	onServers(t, func(b *testQueue) {
		b.enqueueMany(1050, 1)
		b.groups("g")
		b.do("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "2000", "STREAMS", b.k.Stream, ">")
		calls := 0
		for b.count("XLEN", b.k.Stream) > 0 {
			tr := b.trim("", 10, 1<<20)
			if tr.Freed < 1 || tr.Freed > 100 {
				b.Fatalf("freed %d with a limit of 10", tr.Freed)
			}
			calls++
		}
		if calls < 6 {
			b.Fatalf("1,050 entries in %d calls", calls)
		}
	})
}

// A sweep looks up each entry in each group that holds entries, so with many groups one call frees fewer entries.
func TestTrimSweepsWithManyGroups(t *testing.T) {
	onServers(t, func(b *testQueue) {
		b.enqueueMany(150, 1)
		for i := range 50 {
			g := fmt.Sprint("g", i)
			b.groups(g)
			es := b.read(g, "c", 150)
			words := []string{"XACK", b.k.Stream, g}
			for _, e := range es[1:] {
				words = append(words, e.EntryID)
			}
			b.do(words...)
		}
		freed, cursor := 0, ""
		for range 2 { // a call looks at 4,000 pairs of an entry and a group: 80 entries of 50 groups
			tr := b.trim(cursor, 1000, 1<<20)
			if tr.Freed > 80 {
				b.Errorf("freed %d at once", tr.Freed)
			}
			freed, cursor = freed+tr.Freed, tr.Cursor
		}
		redistest.Want(b, "freed", freed, 149)
	})
}
