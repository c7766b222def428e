package stream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// What a group without a name had abandoned was retried for "", which is everybody: another group got it four times. Groups that no retry can be
// for are left alone, and named once.
func TestReclaimLeavesGroupsAloneThatNoRetryCanBeFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.groups("plain")
	r.ready("a")
	r.age("plain", "c", r.take("plain", "c", 1)...)
	odd := []string{"", "line\nbreak", "nul\x00", "\xff\xfe", "sep\x1farator", strings.Repeat("x", lua.MaxGroupBytes+1)}
	for _, name := range odd {
		r.do("XGROUP", "CREATE", r.k.Stream, name, "0")
		r.age(name, "c", r.take(name, "c", 1)...)
	}
	log := &logBook{}
	reclaimer := NewReclaimer(ReclaimerConfig{Client: r.c, Prefix: r.prefix, Queue: r.queue, Logger: log.logger()})
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
	want(t, "moved", moved, 1)
	for _, name := range odd {
		want(t, fmt.Sprintf("pending of %q", name), r.pending(name), int64(1))
	}
	want(t, "lines", log.count("names that no retry can carry"), 1)
	if text := strings.Join(r.stats().Warnings, "\n"); strings.Count(text, "has a name that no retry can carry") != len(odd) {
		t.Error(text)
	}
	for _, name := range odd {
		r.do("XGROUP", "DESTROY", r.k.Stream, name)
	}
	pass()
	pass()
	want(t, "lines when they are gone", log.count("no group has a name"), 1)
	r.drainAll()
	want(t, "entries for the group alone", len(r.next("plain")), 1)
}
