package sizes

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Pending must show that an entry was cancelled, and still show how often the entry was delivered.
func TestACancelledEntryIsListedAsCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Ready("m", "other")
	r.Take("g", "c", 2)
	_, found, err := lua.CancelEntries(t.Context(), r.Client, r.Keys, lua.EntryWalk{Limit: 10}, []string{"m"}, lua.Durability{})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	list, err := Pending(t.Context(), r.Client, r.Prefix, r.Queue, "g", PendingFilter{}, 10)
	if err != nil || len(list) != 2 || list[0].Deliveries != 1 || !list[0].Cancelled || list[1].Cancelled {
		t.Errorf("%+v, %v", list, err)
	}
}
