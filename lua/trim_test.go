package lua

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func (b *rig) trim(cursor string, limit, maxBytes int) Trimmed {
	b.Helper()
	t, err := Trim(b.ctx, b.c, b.k, cursor, limit, maxBytes)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// many enqueues n messages for now.
func (b *rig) many(n, size int) {
	b.Helper()
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{ID: fmt.Sprintf("m%04d", i), When: After(0), Payload: make([]byte, size)}
	}
	b.enqueue(items...)
}

// xack acknowledges like a worker in another language, with XACK alone.
func (b *rig) xack(group string, entries ...Entry) {
	b.Helper()
	for _, e := range entries {
		redistest.Want(b, "XACK", b.count("XACK", b.k.Stream, group, e.EntryID), 1)
	}
}

// Once the bound was the last delivered ID, and the last entry stayed for ever (PITFALLS A10).
func TestTrimFreesToTheLastEntry(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3")
		redistest.Want(b, "trimmed while all is pending", b.trim("", 100, 1000), Trimmed{Groups: 1})
		b.xack("g", es[0])
		redistest.Want(b, "trimmed", b.trim("", 100, 1000), Trimmed{Freed: 1, Groups: 1})
		b.xack("g", es[1:]...)
		redistest.Want(b, "trimmed", b.trim("", 100, 1000), Trimmed{Freed: 2, Groups: 1})
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		redistest.Want(b, "trimmed again", b.trim("", 100, 1000), Trimmed{Groups: 1})
	})
}

func TestTrimWithoutGroupsFreesNothing(t *testing.T) {
	everywhere(t, func(b *rig) {
		redistest.Want(b, "without a stream", b.trim("", 100, 1000), Trimmed{})
		b.many(5, 1)
		redistest.Want(b, "trimmed", b.trim("", 100, 1000), Trimmed{})
		b.groups("g")
		redistest.Want(b, "with a group at 0", b.trim("", 100, 1000), Trimmed{Groups: 1})
		redistest.Want(b, "entries", b.count("XLEN", b.k.Stream), 5)
	})
}

// A group created at $ needs no earlier entry; one created at 0 beside it still needs all.
func TestTrimTakesTheGroupsWord(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(3, 1)
		b.groups("slow")
		b.do("XGROUP", "CREATE", b.k.Stream, "fast", "$")
		redistest.Want(b, "trimmed", b.trim("", 100, 1000), Trimmed{Groups: 2})
		b.do("XGROUP", "DESTROY", b.k.Stream, "slow")
		redistest.Want(b, "trimmed", b.trim("", 100, 1000), Trimmed{Freed: 3, Groups: 1})
	})
}

func TestTrimFollowsTheSlowestGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"a"}, "m1", "m2", "m3", "m4")
		b.groups("b")
		b.xack("a", es...)
		redistest.Want(b, "b was given nothing", b.trim("", 100, 1000).Freed, 0)
		b.read("b", "c", 2)
		redistest.Want(b, "b holds the first two", b.trim("", 100, 1000).Freed, 0)
		b.xack("b", es[0])
		redistest.Want(b, "b holds the second", b.trim("", 100, 1000).Freed, 1)
		b.xack("b", es[1])
		redistest.Want(b, "b was given two", b.trim("", 100, 1000).Freed, 1)
		wantList(b, "left", ids(b.entries(b.k.Stream)), "m3", "m4")
	})
}

func TestTrimCountsNoAckAsServed(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(3, 1)
		b.groups("g")
		b.do("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "2", "STREAMS", b.k.Stream, ">")
		redistest.Want(b, "freed", b.trim("", 100, 1000).Freed, 2)
	})
}

// One entry that stays pending for an hour must not keep all later entries in memory.
func TestTrimSweepsBehindAPendingEntry(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(1000, 10)
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
				b.Fatal("the sweep does not come round")
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

func TestTrimSweepIsBoundedByBytes(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(40, 10_000)
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

// With a limit below the size of a stream node, the server trimmed no whole node, and then everything was trimmed at
// once.
func TestTrimOfALongHeadIsBounded(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(1050, 1)
		b.groups("g")
		b.do("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", "2000", "STREAMS", b.k.Stream, ">")
		if b.inProcess() {
			return // counts NOACK entries as pending, and trims exactly
		}
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

func TestTrimSweepsWithManyGroups(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.many(150, 1)
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
		for range 2 { // 4,000 pairs of an entry and a group in one call
			tr := b.trim(cursor, 1000, 1<<20)
			if tr.Freed > 80 {
				b.Errorf("freed %d at once", tr.Freed)
			}
			freed, cursor = freed+tr.Freed, tr.Cursor
		}
		redistest.Want(b, "freed", freed, 149)
	})
}

func TestTrimEndsDedupWindows(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i := range 25 {
			b.do("ZADD", b.k.Seen, fmt.Sprint(i+1), fmt.Sprint("old", i))
		}
		b.do("ZADD", b.k.Seen, ms(b.now()+60_000), "valid")
		redistest.Want(b, "windows", b.trim("", 10, 0).Windows, 10)
		redistest.Want(b, "windows", b.trim("", 100, 0).Windows, 15)
		wantList(b, "left", b.texts("ZRANGE", b.k.Seen, "0", "-1"), "valid")
	})
}
