package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A search finds each message once while the queue moves to another server of the cluster: during the search of the
// schedule, whose cursor the new server does not know, and during the search of the stream.
func TestSearchWhileASlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	r := queuetest.New(t, c.Server())
	a := redistest.Must(admin.New(&bridge.Redis{Client: r.Client, Blocking: r.Blocking}, r.Prefix))
	r.Groups("g")
	const n = 2000
	for first := 0; first < n; first += 500 {
		var items []lua.Item
		for i := first; i < first+500; i++ {
			items = append(items, lua.Item{ID: fmt.Sprint("s-", i), When: lua.After(time.Hour), Payload: []byte("needle")},
				lua.Item{ID: fmt.Sprint("r-", i), When: lua.After(0), Payload: []byte("needle")})
		}
		r.Enqueue(items...)
	}
	slot := c.Slot(r.Keys.Due)
	move := func() {
		for _, to := range c.Masters() {
			if to != c.Owner(slot) {
				if c.Migrate(slot, to, func() {}) == 0 {
					t.Error("no key moved")
				}
				return
			}
		}
	}
	found := map[string]int{}
	f := admin.SearchFilter{Queues: []string{r.Queue}, Text: "needle"}
	p, err := a.Search(t.Context(), f, admin.SearchOptions{Load: 1}, func(h admin.Hit) error {
		found[h.ID]++
		if len(found) == n/2 || len(found) == n+n/2 {
			move()
		}
		return nil
	})
	if err != nil || !p.Complete {
		t.Fatalf("%+v, %v", p, err)
	}
	redistest.Want(t, "found", [2]int64{p.Found, int64(len(found))}, [2]int64{2 * n, 2 * n})
	result, err := a.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{Load: 1})
	if err != nil || result.Changed != 2*n {
		t.Errorf("cancel: %+v, %v", result, err)
	}
}
