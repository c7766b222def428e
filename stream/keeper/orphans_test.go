package keeper

import (
	"fmt"
	"slices"
	"testing"

	"github.com/duestream/duestream/lua"
)

// What a call deletes is freed inside it: 500 bodies of 1 MB would hold the server for 50 ms. Of those that are only looked at
// nothing is freed.
func TestLargeOrphansAreDeletedInSeveralCalls(t *testing.T) {
	const n, size = 200, 1 << 20
	all := func(ripe bool) (watched []lua.Watched) {
		for i := range n {
			watched = append(watched, lua.Watched{Orphan: lua.Orphan{Field: fmt.Sprint(i), Length: size}, Ripe: ripe})
		}
		return watched
	}
	if batches := watchBatches(all(false)); len(batches) != 1 {
		t.Errorf("%d calls, where one is enough to look", len(batches))
	}
	batches := watchBatches(all(true))
	for i, batch := range batches {
		if len(batch)*size > orphanFreed+size {
			t.Errorf("call %d frees %d MiB", i+1, len(batch)*size>>20)
		}
	}
	if got := slices.Concat(batches...); len(got) != n {
		t.Errorf("%d of %d are in a call", len(got), n)
	}
	if batches := watchBatches([]lua.Watched{{Orphan: lua.Orphan{Field: "a", Length: -1}, Ripe: true}}); len(batches) != 1 {
		t.Error("one whose length is not known is in no call")
	}
}
