package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Bodies without a member are found by a scan, and confirmed by name. A field with a member, or a missing one, is no
// orphan.
func TestFindOrphans(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.do("HSET", b.k.Payload, "m", "p", "a", "p", "b", "")
		b.do("ZADD", b.k.Due, "5", "m", "6", "n")
		for _, c := range []struct {
			cursor string
			limit  int
			fields []string
			want   string // orphans, number of fields scanned, next cursor
		}{
			{"0", 100, nil, "[a b] 3 0"}, {"0", 0, []string{"b", "m", "n", "none", "a"}, "[a b] 0 0"}, {"0", 0, nil, "[] 0 0"},
		} {
			orphans, looked, next, err := findOrphans(b.ctx, b.c, b.k.Due, b.k.Payload, c.cursor, c.limit, c.fields)
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, fmt.Sprint(c), fmt.Sprint(slices.Sorted(slices.Values(orphans)), looked, " ", next), c.want)
		}
		found, cursor := 0, "0"
		for i := range 3000 {
			b.do("HSET", b.k.Meta, fmt.Sprint("f", i), "{}")
		}
		for {
			orphans, looked, next, err := ScanOrphans(b.ctx, b.c, b.k.Due, b.k.Meta, cursor, 100)
			if err != nil || len(orphans) != looked {
				b.Fatal(len(orphans), looked, err)
			}
			if found, cursor = found+looked, next; cursor == "0" {
				break
			}
		}
		redistest.Want(b, "found by pages", found >= 3000, true)
	})
}

// A search finds the entries of a message by their field id. Without that field, the entry ID counts as the message ID.
// A step ends at its limit, or behind the entry that reaches 1 MiB.
func TestFindEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		// step returns the entries found, the next cursor, the number of entries looked at, and whether there are more.
		step := func(id, cursor string, limit int) string {
			next, found, err := FindEntries(b.ctx, b.c, b.k.Stream, id, EntrySearch{Cursor: cursor, Limit: limit})
			if err != nil {
				b.Fatal(err)
			}
			return fmt.Sprint(found, " ", next.Cursor, " ", next.Looked, " ", next.More)
		}
		redistest.Want(b, "no stream", step("m", "", 10), "[] 0-0 0 false")
		b.do("XADD", b.k.Stream, "1-1", "id", "m", "payload", "p")
		b.do("XADD", b.k.Stream, "2-1", "id", "other", "payload", "m", "m", "m")
		b.do("XADD", b.k.Stream, "3-1", "colour", "green")
		b.do("XADD", b.k.Stream, "4-1", "payload", "p", "id", "m")
		redistest.Want(b, "all", step("m", "", 10), "[1-1 4-1] 4-1 4 false")
		redistest.Want(b, "one of another program", step("3-1", "", 10), "[3-1] 4-1 4 false")
		redistest.Want(b, "a first step", step("m", "", 3), "[1-1] 3-1 3 true")
		redistest.Want(b, "the next step", step("m", "3-1", 3), "[4-1] 4-1 1 false")
		redistest.Want(b, "nothing new", step("m", "4-1", 3), "[] 4-1 0 false")
		for _, id := range []string{"5-1", "6-1", "7-1"} {
			b.do("XADD", b.k.Stream, id, "id", "large", "payload", strings.Repeat("x", 600_000))
		}
		redistest.Want(b, "large ones", step("large", "4-1", 10), "[5-1 6-1] 6-1 2 true")
		if _, _, err := FindEntries(b.ctx, b.c, b.k.Stream, "m", EntrySearch{Cursor: "x", Limit: 1}); err == nil {
			b.Error("a cursor that is no entry ID is accepted")
		}
	})
}

// An entry is lost if it is pending in the group and missing from the stream: not if it exists, if another group holds
// it, or if nobody does. Large entries are looked at in several calls.
func TestLostEntries(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g", "h")
		var ids []string
		for i := range 5 {
			ids = append(ids, fmt.Sprint(i+1, "-1"))
			b.do("XADD", b.k.Stream, ids[i], "payload", strings.Repeat("x", 600_000))
		}
		b.read("g", "c", 4)
		b.read("h", "c", 5)
		b.do("XDEL", b.k.Stream, ids[0], ids[3], ids[4])
		b.do("XACK", b.k.Stream, "g", ids[0])
		for group, lost := range map[string]string{"g": "[4-1]", "h": "[1-1 4-1 5-1]"} {
			got, err := LostEntries(b.ctx, b.c, b.k.Stream, group, append(ids, "9-9"))
			redistest.Want(b, group, fmt.Sprint(got, err), lost+" <nil>")
		}
	})
}
