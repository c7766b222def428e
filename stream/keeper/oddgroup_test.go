package keeper

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/sizes"
)

// The reclaimer must leave a group alone whose name no retry can carry, and log such groups once. Regression: an entry
// that a group with the empty name had abandoned was retried for "", which means all groups. Another group got it four
// times.
func TestReclaimSkipsGroupsWithUnusableNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("plain")
	r.Ready("a")
	r.Age("plain", "c", r.Take("plain", "c", 1)...)
	odd := []string{"", "line\nbreak", "nul\x00", "\xff\xfe", "sep\x1farator", strings.Repeat("x", lua.MaxGroupBytes+1)}
	for _, name := range odd {
		r.Do("XGROUP", "CREATE", r.Keys.Stream, name, "0")
		r.Age(name, "c", r.Take(name, "c", 1)...)
	}
	log := &queuetest.LogBook{}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Logger: log.Logger()})
	moved := 0
	pass := func() {
		t.Helper()
		result, err := reclaimer.Reclaim(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moved += result.Moved()
	}
	for range 3 {
		pass()
	}
	redistest.Want(t, "moved", moved, 1)
	for _, name := range odd {
		redistest.Want(t, fmt.Sprintf("pending of %q", name), r.Pending(name), int64(1))
	}
	redistest.Want(t, "lines", log.Count("names that no retry can carry"), 1)
	stats, err := sizes.Stats(t.Context(), r.Client, r.Prefix, r.Queue)
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "groups in stats", len(stats.Groups), len(odd)+1)
	for _, name := range odd {
		r.Do("XGROUP", "DESTROY", r.Keys.Stream, name)
	}
	pass()
	pass()
	redistest.Want(t, "lines when they are gone", log.Count("no group has a name"), 1)
	r.DrainAll()
	redistest.Want(t, "entries for the group alone", len(r.Next("plain")), 1)
}
