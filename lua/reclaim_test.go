package lua

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Many entries that consumers work on must not hide abandoned entries behind them: XAUTOCLAIM looks at ten entries for
// each that it may return, and begins at the oldest entry again unless the caller passes the cursor on.
func TestReclaimReachesBehindEntriesInWork(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprintf("m%03d", i))
		}
		es := b.deliver([]string{"g"}, names...)
		b.abandon("g", "c1", es[199].EntryID)
		cursor, calls := "", 0
		for {
			calls++
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, MinIdle: time.Minute, Cursor: cursor,
				Limit: 5, MaxBytes: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			if r.Retried == 1 {
				break
			}
			if cursor = r.Cursor; cursor == "" {
				b.Fatalf("came round after %d calls and took nothing", calls)
			}
		}
		redistest.Want(b, "pending", b.pending("g"), 199)
	})
}

// Reclaim claims entries under a consumer name of its own, which it deletes again, unless that consumer holds an entry.
func TestReclaimLeavesNoConsumerBehind(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.deliver([]string{"g"}, "m1", "m2")
		b.reclaim("g", 0)
		consumers := func() string {
			var names []string
			m := b.do("XINFO", "CONSUMERS", b.k.Stream, "g")
			list, _ := m.ToArray()
			for _, one := range list {
				c, err := one.AsMap()
				if err != nil {
					b.Fatal(err)
				}
				n := c["name"]
				name, _ := n.ToString()
				names = append(names, name)
			}
			return strings.Join(names, ",")
		}
		redistest.Want(b, "consumers", consumers(), "c1")
		// Not if it holds something: deleting it would lose that.
		b.enqueue(Item{ID: "m3", When: After(0)})
		e := b.read("g", ReclaimConsumer, 1)[0]
		b.reclaim("g", time.Hour)
		redistest.Want(b, "consumers", consumers(), "c1,"+ReclaimConsumer)
		redistest.Want(b, "pending", b.pending("g"), 1)
		b.ack("g", Held{Entry: e.EntryID})
		b.reclaim("g", time.Hour)
		redistest.Want(b, "consumers", consumers(), "c1")
	})
}

// Without the stream, and without the group, a reclaim returns ErrNoGroup, by which a bridge tells a group that
// was destroyed from a fault.
func TestReclaimWithoutAGroupSaysSo(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, prepare := range []func(){func() {}, func() { b.groups("other") }} {
			prepare()
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, Limit: 1, MaxBytes: 1})
			if !errors.Is(err, ErrNoGroup) {
				b.Fatalf("error %v, want ErrNoGroup", err)
			}
		}
	})
}

// extend calls Extend. It returns for each entry whether the consumer still holds it and it is not cancelled.
func (b *testQueue) extend(group, consumer string, held ...Held) []bool {
	b.Helper()
	got, err := Extend(b.ctx, b.c, b.k, group, consumer, held)
	if err != nil {
		b.Fatal(err)
	}
	own := make([]bool, len(got))
	for i, answer := range got {
		own[i] = answer == StillHeld
	}
	return own
}

func TestExtendWithoutAGroupSaysSo(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		_, err := Extend(b.ctx, b.c, b.k, "g", "c1", []Held{{Entry: "5-1"}})
		if !errors.Is(err, ErrNoGroup) {
			b.Fatalf("error %v, want ErrNoGroup", err)
		}
	})
}

// XAUTOCLAIM removes deleted entries from the pending list, and returns their IDs in its third list. Each must become a
// dead letter, or the message would be gone without a trace.
func TestReclaimReportsLostBodies(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3")
		b.do("XDEL", b.k.Stream, es[0].EntryID, es[2].EntryID)
		redistest.Want(b, "reclaimed", b.reclaim("g", 0), Reclaimed{Retried: 1, Dead: 2})
		for i, d := range b.letters() {
			redistest.Want(b, "letter", [...]string{d.ID, d.Group, d.Reason, d.FailedEntry},
				[...]string{es[2*i].EntryID, "g", ReasonBodyLost, es[2*i].EntryID})
		}
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=2 g=0", "g")
	})
}

// An extension is no delivery: it must not change the delivery counter, from which reclaim computes the attempt.
func TestExtendLeavesTheCounterAlone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		for range 5 {
			wantList(b, "extended", b.extend("g", "c1", Held{Entry: e.EntryID}), true)
		}
		n, _, _ := b.pendingEntry("g", e.EntryID)
		redistest.Want(b, "deliveries", n, 1)
		b.reclaim("g", 0)
		b.makeDue()
		b.drain(1)
		redistest.Want(b, "attempt", b.entries(b.k.Stream)[0].Attempt, 2)
	})
}
