package lua

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestAckFreesWhatNoGroupNeeds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	everywhere(t, func(b *rig) {
		random := rand.New(rand.NewPCG(seed, 0))
		groups := []string{"a", "b", "c"}
		for range 12 {
			b.do("DEL", b.k.Stream)
			own := groups[:1+random.IntN(3)]
			ackRandomly(b, random, own, 50+random.IntN(400))
		}
	})
}

const entryIDs = `
local ids = {}
for i, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do ids[i] = entry[1] end
return table.concat(ids, ' ')`

// add adds n entries, and returns their IDs.
func (b *rig) add(n int) (ids []string) {
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

func ackRandomly(b *rig, random *rand.Rand, groups []string, n int) {
	b.Helper()
	all := b.add(n)
	held, given := map[string][]string{}, map[string]int{}
	for _, g := range groups {
		b.do("XGROUP", "CREATE", b.k.Stream, g, "0")
	}
	needed := func() map[string]bool {
		ids := map[string]bool{}
		for _, g := range groups {
			for _, id := range slices.Concat(held[g], all[given[g]:]) {
				ids[id] = true
			}
		}
		return ids
	}
	for left := needed(); len(left) > 0; {
		g := groups[random.IntN(len(groups))]
		if k := min(random.IntN(120), n-given[g]); random.IntN(2) == 0 && k > 0 {
			if err := b.c.Do(b.ctx, b.c.B().Xreadgroup().Group(g,
				"c").Count(int64(k)).Streams().Key(b.k.Stream).Id(">").Build()).Error(); err != nil {
				b.Fatal(err)
			}
			held[g] = append(held[g], all[given[g]:given[g]+k]...)
			given[g] += k
			continue
		}
		random.Shuffle(len(held[g]), func(i, j int) { held[g][i], held[g][j] = held[g][j], held[g][i] })
		k := min(len(held[g]), 1+random.IntN(80))
		if random.IntN(2) == 0 {
			slices.Sort(held[g])
		}
		batch := make([]Held, k)
		for i, id := range held[g][:k] {
			batch[i].Entry = id
		}
		held[g] = held[g][k:]
		won, err := Ack(b.ctx, b.c, b.k, g, batch)
		if err != nil || slices.Contains(won, false) {
			b.Fatal(won, err)
		}
		there := map[string]bool{}
		for _, id := range strings.Fields(b.text("EVAL", entryIDs, "1", b.k.Stream)) {
			there[id] = true
		}
		left = needed()
		for id := range left {
			if !there[id] {
				b.Fatalf("%s is gone, and a group still needs it", id)
			}
		}
	}
	// entries that a trim left are less than a node, or behind one that was held
	for i := 0; i < 20 && b.count("XLEN", b.k.Stream) > 0; i++ {
		if _, err := Trim(b.ctx, b.c, b.k, "", 1000, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
	redistest.Want(b, fmt.Sprint("entries left of ", n, " in ", len(groups), " groups"), b.count("XLEN", b.k.Stream), 0)
}

// Without any trim, the last acknowledgement leaves at most one node.
func TestAckLeavesAtMostANode(t *testing.T) {
	everywhere(t, func(b *rig) {
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

func heldBy(entries []Entry) (held []Held) {
	for _, e := range entries {
		held = append(held, Held{Entry: e.EntryID})
	}
	return held
}

// Entries that other groups still hold are freed by a later call, unless they lie behind an entry that stays pending.
// That may last for an hour, so then each entry is looked at.
func TestAckBehindAHeldEntryFrees(t *testing.T) {
	everywhere(t, func(b *rig) {
		now := b.now()
		for _, c := range []struct {
			age  int64
			left int
		}{{5000, 1}, {0, 21}} {
			b.do("DEL", b.k.Stream)
			b.do("XADD", b.k.Stream, fmt.Sprintf("%d-0", now-c.age), "id", "held")
			for i := range 20 {
				b.do("XADD", b.k.Stream, fmt.Sprintf("%d-%d", now, i+1), "id", fmt.Sprint("m", i))
			}
			b.groups("g", "h")
			own, others := b.read("g", "c", 21), b.read("h", "c", 21)
			b.ack("g", heldBy(own[1:])...)
			redistest.Want(b, "left while the other group holds them", b.count("XLEN", b.k.Stream), 21)
			b.ack("h", heldBy(others)...)
			redistest.Want(b, fmt.Sprintf("left behind one that is %d ms older", c.age), b.count("XLEN", b.k.Stream), c.left)
			b.trim("0-0", 100, 1<<20)
			redistest.Want(b, "left after a trim", b.count("XLEN", b.k.Stream), 1)
		}
	})
}

// An entry that another program adds with an ID of its own may have a sequence number beyond 2^53. The walks through a
// stream used to get stuck at such an entry: no recurrence of its queue was planned any more, and a cancel never ended.
func TestWalksPassEntriesWithLargeSequenceNumbers(t *testing.T) {
	everywhere(t, func(b *rig) {
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
	everywhere(t, func(b *rig) {
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
