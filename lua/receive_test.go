package lua

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// receive calls Receive with an idle time and without a lease.
func (b *testQueue) receive(group string, idle time.Duration, limit int) Received {
	b.Helper()
	r, err := Receive(b.ctx, b.c, b.k, group, "c1", 0, idle, limit)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// An entry that is received with an idle time is reclaimed that much earlier than the visibility timeout, by the same
// reclaim. An extension sets the idle time again. Neither counts as a delivery.
func TestReceivedIsReclaimedInItsOwnTime(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.enqueue(Item{ID: "short", When: After(0)}, Item{ID: "extended", When: After(0)}, Item{ID: "long", When: After(0)})
		b.drain(100)
		const visibility = time.Minute
		held := b.receive("g", visibility, 2).Entries
		held = append(held, b.receive("g", 0, 1).Entries...)
		ok, err := ExtendIdle(b.ctx, b.c, b.k, "g", "c1", visibility/2, []Held{{Entry: held[1].EntryID, ID: "extended"}})
		if err != nil || ok[0] != StillHeld {
			b.Fatal(ok, err)
		}
		for i, least := range []time.Duration{visibility, visibility / 2, 0} {
			deliveries, owner, idle := b.pendingEntry("g", held[i].EntryID)
			if b.inProcess() { // that server counts claims as deliveries
				deliveries = 1
			}
			ms := least.Milliseconds()
			if deliveries != 1 || owner != "c1" || idle < ms || idle > ms+visibility.Milliseconds()/4 {
				b.Errorf("%s: %d deliveries, of %s, idle for %d ms", held[i].ID, deliveries, owner, idle)
			}
		}
		redistest.Want(b, "reclaimed", b.reclaim("g", visibility).Retried, 1)
		b.wantState("due=1 payload=0 meta=1 stream=2 dead=0 g=2", "g")
		lost, err := ExtendIdle(b.ctx, b.c, b.k, "g", "c1", visibility, []Held{{Entry: held[0].EntryID, ID: "short"}})
		if err != nil || lost[0] != NotHeld {
			b.Error("extended what was reclaimed", lost, err)
		}
	})
}

// A queue with paused workers gives nothing, and takes nothing away.
func TestReceiveRestsWithTheWorkers(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		if _, err := Receive(b.ctx, b.c, b.k, "g", "c1", 0, 0, 1); !errors.Is(err, ErrNoGroup) {
			b.Error("of no group", err)
		}
		b.groups("g")
		b.enqueue(Item{ID: "m", When: After(0)})
		b.drain(100)
		b.set("held_workers", "1")
		r := b.receive("g", 0, 10)
		redistest.Want(b, "held, given", fmt.Sprint(r.Held, len(r.Entries), b.pending("g")), "true 0 0")
		b.do("DEL", b.k.Policy)
		redistest.Want(b, "given", len(b.receive("g", 0, 10).Entries), 1)
	})
}
