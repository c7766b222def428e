package lua

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestReclaimTakesOnlyWhatIsAbandoned(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3")
		b.abandon("g", "c1", es[0].EntryID, es[2].EntryID)
		head := b.token()
		redistest.Want(b, "reclaimed", b.reclaim("g", time.Minute), Reclaimed{Retried: 2})
		redistest.Want(b, "woke", b.token() != head, true)
		b.wantState("due=2 payload=2 meta=2 stream=1 dead=0 g=1", "g")
		n, owner, _ := b.counter("g", es[1].EntryID)
		if n != 1 || owner != "c1" {
			b.Fatalf("the entry in work was delivered %d times, to %s", n, owner)
		}
		b.makeDue()
		b.drain(10)
		r := b.read("g", "c2", 10)
		wantList(b, "again", ids(r), "m1", "m3")
		for _, e := range r {
			redistest.Want(b, "attempt", e.Attempt, 2)
			redistest.Want(b, "for", e.For, "g")
			if !strings.Contains(e.Error, "visibility timeout") || !strings.Contains(e.Error, "60000") {
				b.Errorf("error %q", e.Error)
			}
		}
		redistest.Want(b, "again", b.reclaim("g", time.Minute), Reclaimed{})
	})
}

func TestReclaimEndsInADeadLetter(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p", "attempt", "3", "due_ms", "5", "for", "g")
		b.read("g", "c1", 1)
		redistest.Want(b, "reclaimed", b.reclaim("g", 0), Reclaimed{Dead: 1})
		d := b.entries(b.k.Dead)[0]
		redistest.Want(b, "letter", [...]string{d.ID, d.Group, d.Reason, string(d.Payload)},
			[...]string{"m", "g", ReasonVisibilityTimeout, "p"})
		redistest.Want(b, "attempt", d.Attempt, 3)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
	})
}

// The server's counter grows with every foreign claim, the field attempt does not: once a poison message went round for
// ever between consumers that claim from each other (PITFALLS B8).
func TestReclaimCountsForeignClaims(t *testing.T) {
	everywhere(t, func(b *rig) {
		for i, c := range []struct {
			claims  int
			attempt int // of the next delivery; 0 = dead-lettered
		}{{0, 2}, {1, 3}, {2, 0}, {20, 0}} {
			b := b.queue(fmt.Sprint("q", i))
			e := b.deliver([]string{"g"}, "m")[0]
			for j := range c.claims {
				b.do("XCLAIM", b.k.Stream, "g", fmt.Sprint("thief", j), "0", e.EntryID)
			}
			r := b.reclaim("g", 0)
			if c.attempt == 0 {
				redistest.Want(b, "reclaimed", r, Reclaimed{Dead: 1})
				redistest.Want(b, "attempt of the letter", b.entries(b.k.Dead)[0].Attempt, c.claims+1)
				continue
			}
			redistest.Want(b, "reclaimed", r, Reclaimed{Retried: 1})
			b.makeDue()
			b.drain(1)
			redistest.Want(b, fmt.Sprintf("attempt after %d claims", c.claims), b.entries(b.k.Stream)[0].Attempt, c.attempt)
		}
	})
}

func TestReclaimIsBoundedAndGoesOnFromItsCursor(t *testing.T) {
	everywhere(t, func(b *rig) {
		var names []string
		for i := range 30 {
			names = append(names, fmt.Sprintf("m%02d", i))
		}
		b.deliver([]string{"g"}, names...)
		args := ReclaimArgs{Group: "g", Attempts: policy, Limit: 7, MaxBytes: 1 << 20}
		var took []int
		for {
			r, err := Reclaim(b.ctx, b.c, b.k, args)
			if err != nil {
				b.Fatal(err)
			}
			took = append(took, r.Retried)
			if r.Cursor == "" {
				break
			}
			args.Cursor = r.Cursor
		}
		wantList(b, "taken per call", took, 7, 7, 7, 7, 2)
		b.wantState("due=30 payload=30 meta=30 stream=0 dead=0 g=0", "g")
	})
}

func TestReclaimStopsAfterItsBytes(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for i := range 5 {
			b.enqueue(Item{ID: fmt.Sprint("m", i), When: After(0), Payload: make([]byte, 1000)})
		}
		b.read("g", "c1", 5)
		cursor := ""
		for _, n := range []int{3, 1} {
			r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, Cursor: cursor, Limit: 100,
				MaxBytes: n*1000 - 900})
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, "taken", r.Retried, n)
			cursor = r.Cursor
		}
	})
}

// Many entries in work at the head must not hide abandoned ones behind them: the server looks at ten for each that it
// may return, and each time from the beginning unless the cursor is kept.
func TestReclaimReachesBehindEntriesInWork(t *testing.T) {
	everywhere(t, func(b *rig) {
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

func TestReclaimLeavesNoConsumerBehind(t *testing.T) {
	everywhere(t, func(b *rig) {
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

func TestReclaimWithoutAGroupSaysSo(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, prepare := range []func(){func() {}, func() { b.groups("other") }} {
			prepare()
			_, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: policy, Limit: 1, MaxBytes: 1})
			if !errors.Is(err, ErrNoGroup) {
				b.Fatalf("error %v, want ErrNoGroup", err)
			}
		}
	})
}

// XAUTOCLAIM drops entries whose body was deleted, and returns them in its third list: an exit from the pending list
// without a trace.
func TestReclaimReportsLostBodies(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2", "m3")
		b.do("XDEL", b.k.Stream, es[0].EntryID, es[2].EntryID)
		redistest.Want(b, "reclaimed", b.reclaim("g", 0), Reclaimed{Retried: 1, Dead: 2})
		for i, d := range b.entries(b.k.Dead) {
			redistest.Want(b, "letter", [...]string{d.ID, d.Group, d.Reason, d.Entry},
				[...]string{es[2*i].EntryID, "g", ReasonBodyLost, es[2*i].EntryID})
		}
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=2 g=0", "g")
	})
}

func TestReclaimKeepsDamagedEntries(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for _, f := range [][]string{{"id", "a", "attempt", "x"}, {"color", "red"}, {"id", "c", "payload", "p", "for", "other"},
			{"id", "d", "payload", "p"}} {
			b.do(append([]string{"XADD", b.k.Stream, "*"}, f...)...)
		}
		b.read("g", "c1", 10)
		redistest.Want(b, "reclaimed", b.reclaim("g", 0), Reclaimed{Retried: 2, Dead: 1, Skipped: 1})
		b.wantState("due=2 payload=1 meta=2 stream=0 dead=1 g=0", "g")
	})
}

func (b *rig) extend(group, consumer string, held ...Held) []bool {
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

func TestExtendKeepsOnlyWhatIsItsOwn(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "own", "taken", "done")
		b.do("XCLAIM", b.k.Stream, "g", "thief", "0", es[1].EntryID, "IDLE", "3600000", "JUSTID")
		b.ack("g", Held{Entry: es[2].EntryID})
		b.abandon("g", "c1", es[0].EntryID)
		wantList(b, "extended", b.extend("g", "c1", Held{Entry: es[1].EntryID, ID: "taken"}, Held{Entry: es[0].EntryID, ID: "own"},
			Held{Entry: es[2].EntryID, ID: "done"}, Held{Entry: "5-1", ID: ""}), false, true, false, false)
		if _, owner, idle := b.counter("g", es[0].EntryID); owner != "c1" || idle > 60_000 {
			b.Fatalf("held by %s, idle for %d ms", owner, idle)
		}
		if _, owner, idle := b.counter("g", es[1].EntryID); owner != "thief" || idle < 3_600_000 {
			b.Fatalf("the other's is held by %s, idle for %d ms", owner, idle)
		}
		b.wantState("due=0 payload=0 meta=0 stream=2 dead=0 g=2", "g")
		redistest.Want(b, "reclaimed after the extension", b.reclaim("g", time.Minute), Reclaimed{Retried: 1})
		wantList(b, "extended after", b.extend("g", "c1", Held{Entry: es[0].EntryID, ID: ""}), true)
	})
}

func TestExtendLeavesTheCounterAlone(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		for range 5 {
			wantList(b, "extended", b.extend("g", "c1", Held{Entry: e.EntryID}), true)
		}
		n, _, _ := b.counter("g", e.EntryID)
		redistest.Want(b, "deliveries", n, 1)
		b.reclaim("g", 0)
		b.makeDue()
		b.drain(1)
		redistest.Want(b, "attempt", b.entries(b.k.Stream)[0].Attempt, 2)
	})
}

func TestExtendBuriesALostBody(t *testing.T) {
	everywhere(t, func(b *rig) {
		es := b.deliver([]string{"g"}, "m1", "m2")
		b.do("XDEL", b.k.Stream, es[0].EntryID)
		held := []Held{{Entry: es[0].EntryID, ID: "m1"}, {Entry: es[1].EntryID, ID: "m2"}}
		wantList(b, "extended", b.extend("g", "c1", held...), false, true)
		wantList(b, "again", b.extend("g", "c1", held...), false, true)
		d := b.entries(b.k.Dead)
		wantList(b, "letters", ids(d), "m1")
		redistest.Want(b, "letter", [...]string{d[0].Group, d[0].Reason, d[0].Entry},
			[...]string{"g", ReasonBodyLost, es[0].EntryID})
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=1 g=1", "g")
	})
}

func TestExtendWithoutAGroupSaysSo(t *testing.T) {
	everywhere(t, func(b *rig) {
		_, err := Extend(b.ctx, b.c, b.k, "g", "c1", []Held{{Entry: "5-1"}})
		if !errors.Is(err, ErrNoGroup) {
			b.Fatalf("error %v, want ErrNoGroup", err)
		}
	})
}
