package lua

import (
	"fmt"
	"slices"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Malformed counts, and counts beyond 256, are ignored; every queue has had one partition.
func TestPartitionCounts(t *testing.T) {
	for text, parsed := range map[string]string{"": "1", "1": "1", "4": "1,4", "4,1,4": "1,4", "8,x,0,-2,257, 3": "1,8",
		"1,256": "1,256"} {
		redistest.Want(t, "counts of "+text, ParseCounts(text).String(), parsed)
	}
	redistest.Want(t, "latest of none", Counts(nil).Latest(), 1)
	redistest.Want(t, "with", Counts{1, 4}.With(8, 4).String(), "1,4,8")
	wantList(t, "names", Counts{1, 3}.Names("emails"), "emails", "emails/1", "emails/2")
}

// A client in another language must find the same partition, so the test has fixed values: the CRC-32 of the ID, as
// zlib computes it, modulo the number of partitions.
func TestPartitionOfAnID(t *testing.T) {
	for id, crc := range map[string]uint32{"123456789": 0xcbf43926, "order-42": 0x57f706de, "order-45": 0xc993937d} {
		for _, n := range []int{1, 2, 4, 7, 256} {
			redistest.Want(t, fmt.Sprint("partition of ", id, " among ", n), Counts{1}.With(n).Of(id), int(crc%uint32(n)))
		}
	}
	counts := Counts{1, 4, 16}
	for i := range 100 {
		id := fmt.Sprint("message-", i)
		candidates := counts.Candidates(id)
		for _, n := range append(slices.Clone(counts), 1) {
			if !slices.Contains(candidates, Counts{1}.With(n).Of(id)) {
				t.Errorf("%s was scheduled among %d partitions and is not looked for there: %v", id, n, candidates)
			}
		}
		redistest.Want(t, "first place to look", candidates[0], counts.Of(id))
		redistest.Want(t, "different places to look", len(slices.Compact(slices.Sorted(slices.Values(candidates)))), 16)
	}
}

// The registry only grows: a client that knows fewer counts removes none, and malformed counts are not kept.
func TestRegisterKeepsEveryCount(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, server *redistest.Server) {
		c, g := server.Client(t), NewGlobals(server.Prefix(t))
		register := func(counts Counts, changed int) {
			t.Helper()
			n, err := RegisterCounts(t.Context(), c, g, map[string]Counts{"emails": counts, "other": {1}})
			if err != nil || n != changed {
				t.Errorf("register %v: %d changed, %v; want %d", counts, n, err, changed)
			}
		}
		known := func(counts string) {
			t.Helper()
			got, err := ReadCounts(t.Context(), c, g, "emails")
			if err != nil || got.String() != counts {
				t.Errorf("the registry has %v, %v; want %s", got, err, counts)
			}
		}
		known("1")
		register(Counts{1}, 2)
		register(Counts{1, 4}, 1)
		register(nil, 0)
		register(Counts{16}, 1)
		known("1,4,16")
		if err := c.Do(t.Context(), c.B().Hset().Key(g.Queues).FieldValue().FieldValue("emails",
			"4,many,1e9").FieldValue("not/allowed", "1").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		known("1,4")
		register(Counts{2}, 1)
		known("1,2,4")
		all, err := ReadRegistry(t.Context(), c, g)
		if err != nil || len(all) != 2 || all["emails"].Latest() != 4 || all["other"].Latest() != 1 {
			t.Errorf("registry: %v, %v", all, err)
		}
	})
}

// A deletion adds a wake token, because a bridge serves the partitions of a deleted queue until it reads the registry.
func TestADeletionWakesTheBridges(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, server *redistest.Server) {
		c, g := server.Client(t), NewGlobals(server.Prefix(t))
		if err := Unregister(t.Context(), c, g, "q", Counts{1, 8}); err != nil {
			t.Fatal(err)
		}
		tokens, err := c.Do(t.Context(), c.B().Xlen().Key(g.Wake).Build()).AsInt64()
		redistest.Want(t, "tokens", fmt.Sprint(tokens, err), "1 <nil>")
	})
}

// Before, clients that remembered the partition counts of a deleted queue registered them when the queue was created
// again. A client that registers remembered counts without reading the registry still does, because its messages are in
// these partitions.
func TestCountsOfADeletedQueueAreForgotten(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, server *redistest.Server) {
		c, g := server.Client(t), NewGlobals(server.Prefix(t))
		registered := func(what, counts, deleted string) {
			t.Helper()
			all, err := c.Do(t.Context(), c.B().Hgetall().Key(g.Queues).Build()).AsStrMap()
			redistest.Want(t, what, fmt.Sprint(all["q"], " and ", all[DeletedCounts("q")], err),
				fmt.Sprint(counts, " and ", deleted, nil))
		}
		register := func(counts ...int) {
			t.Helper()
			if _, err := RegisterCounts(t.Context(), c, g, map[string]Counts{"q": counts}); err != nil {
				t.Fatal(err)
			}
		}
		sync := func(remembered Counts, want string) {
			t.Helper()
			current, err := SyncCounts(t.Context(), c, g, map[string]Counts{"q": remembered})
			redistest.Want(t, "a client goes on with", fmt.Sprint(current["q"], err), want+" <nil>")
		}
		unregister := func(had ...int) {
			t.Helper()
			if err := Unregister(t.Context(), c, g, "q", had); err != nil {
				t.Fatal(err)
			}
		}
		register(1, 8)
		unregister(1, 8)
		registered("deleted", "", "8")
		sync(Counts{1, 8}, "1")
		registered("forgotten", "1", "8")
		sync(Counts{1, 4, 8}, "1,4")
		registered("forgotten beside one of its own", "1,4", "8")
		unregister(1, 4)
		registered("deleted again", "", "4,8")
		sync(Counts{1, 4, 8, 16}, "1,16")
		register(1, 8)
		registered("registered by a client that does not read", "1,8,16", "4")
		sync(Counts{1, 4, 8}, "1,8,16")
		register(4)
		registered("and the other count", "1,4,8,16", "")
		unregister(1)
		register(1)
		unregister(1)
		registered("never had partitions", "", "")
	})
}
