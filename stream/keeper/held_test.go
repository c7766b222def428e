package keeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// notes returns the notes that bridges keep in the queue's hash about deliveries. It leaves out the times of their
// looks.
func (r *rig) notes() map[string]string {
	r.T.Helper()
	all, err := r.Client.Do(r.T.Context(), r.Client.B().Hgetall().Key(r.Keys.Calm).Build()).AsStrMap()
	if err != nil {
		r.T.Fatal(err)
	}
	delete(all, "seen_ms")
	delete(all, "away")
	return all
}

// A note of a delivery must be deleted when the delivery ends: when the group holds nothing any more, or is destroyed,
// also if another bridge has taken over the queue meanwhile. Otherwise the notes would pile up.
func TestNotesOfDeliveriesGoWithThem(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("one", "two", "three")
		r.Ready("a", "b")
		first := r.Take("one", "c", 2)
		r.Take("two", "c", 1)
		third := r.Take("three", "c", 1)
		watcher := func() *Reclaimer {
			return NewReclaimer(ReclaimerConfig{Client: r.Client, Prefix: r.Prefix, Queue: r.Queue, Watched: true})
		}
		bridge := watcher()
		// look makes a pass, and checks the number of notes for each of the three groups.
		look := func(what, want string) {
			t.Helper()
			if _, err := bridge.Reclaim(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, group := range []string{"one", "two", "three"} {
				got += fmt.Sprint(strings.Count(r.notes()[lua.HeldField(group)], "="), " ")
			}
			redistest.Want(t, what, strings.TrimSpace(got), want)
			redistest.Want(t, what+": fields", len(r.notes()), 3-strings.Count(want, "0"))
		}
		look("all hold", "2 1 1")
		r.Xack("one", first...)
		look("one holds nothing", "0 1 1")
		r.Do("XGROUP", "DESTROY", r.Keys.Stream, "two")
		look("two is gone", "0 0 1")
		r.Do("HSET", r.Keys.Calm, lua.HeldField("gone"), "- 1-1=1/00000000")
		bridge = watcher()
		look("another bridge, after a group was destroyed while none looked", "0 0 1")
		r.Xack("three", third...)
		look("nobody holds anything", "0 0 0")
	})
}

// When a queue has no messages, its hash of notes must be gone.
func TestDrainedQueueHoldsNoNotesOfDeliveries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("a")
	held := r.Take("g", "c", 1)
	r.startKeeper(Config{}, r.Queue)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return strings.Count(r.notes()[lua.HeldField("g")], "=") == 1, fmt.Sprint(r.notes())
	})
	r.Xack("g", held...)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		n, err := r.Client.Do(t.Context(), r.Client.B().Exists().Key(r.Keys.Calm).Build()).AsInt64()
		return n == 0 && err == nil, fmt.Sprint(r.notes(), err)
	})
}
