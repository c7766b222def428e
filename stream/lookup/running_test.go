package lookup

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A search must show that an entry was cancelled, and still show how often the entry was delivered.
func TestACancelledEntryIsShownAsCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("m", "other")
	r.Take("g", "c", 2)
	walk := lua.EntryWalk{Limit: 10}
	_, found, err := lua.CancelEntries(t.Context(), r.Client, r.Keys, walk, []string{"m"}, lua.Durability{})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	f, err := r.find("m", r.Queue)
	if err != nil || len(f.Places) != 1 || f.Places[0].Deliveries != 1 || !f.Places[0].Cancelled {
		t.Errorf("%+v, %v", f.Places, err)
	}
}
