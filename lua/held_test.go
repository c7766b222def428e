package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// heldFor returns for how long a consumer has held an entry, by the notes of bridges and the server's clock.
func (b *testQueue) heldFor(group, entry string) time.Duration {
	b.Helper()
	_, consumer, idle := b.pendingEntry(group, entry)
	notes := ParseHeldNotes(b.hash(b.k.Calm)[HeldField(group)])
	now := time.UnixMilli(b.now())
	return now.Sub(notes.Since(entry, consumer, now, time.Duration(idle)*time.Millisecond))
}

// noteHeld reclaims as a bridge does, with a visibility timeout of 30 s, so that held deliveries are noted.
func (b *testQueue) noteHeld(group string) {
	b.Helper()
	if _, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: group, Attempts: policy, MinIdle: 30 * time.Second,
		Shortest: 30 * time.Second, Limit: 10, MaxBytes: 1 << 20, Notes: 100}); err != nil {
		b.Fatal(err)
	}
}

// setIdle sets the idle time of an entry, as if it had been delivered or extended that long ago.
func (b *testQueue) setIdle(group, consumer, entry string, d time.Duration) {
	b.Helper()
	b.do("XCLAIM", b.k.Stream, group, consumer, "0", entry, "IDLE", ms(d.Milliseconds()), "JUSTID")
}

// wantHeld checks for how long an entry is held, with 2 s for the test itself.
func (b *testQueue) wantHeld(what, group, entry string, want time.Duration) {
	b.Helper()
	if got := b.heldFor(group, entry); got < want || got > want+2*time.Second {
		b.Errorf("%s: held for %s, want %s", what, got, want)
	}
}

// readOldEntries adds n entries that became ready an hour ago, which a consumer of a group reads now. It returns their
// entry IDs.
func (b *testQueue) readOldEntries(group, consumer string, n int) (entries []string) {
	b.Helper()
	b.groups(group)
	for i := range n {
		id := fmt.Sprintf("%d-%d", b.now()-time.Hour.Milliseconds(), i)
		b.do("XADD", b.k.Stream, id, "id", fmt.Sprint("m", i), "attempt", "1")
		entries = append(entries, id)
	}
	redistest.Want(b, "read", len(b.read(group, consumer, n)), n)
	return entries
}

// Regression: the idle time of an entry restarts with each extension. So if a handler hung for ever while its worker
// extended the delivery, that delivery always looked a few seconds old.
func TestReclaimNotesSinceWhenADeliveryIsHeld(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		entry := b.readOldEntries("g", "c1", 1)[0]
		b.wantHeld("just read, after an hour in the backlog", "g", entry, 0)
		b.setIdle("g", "c1", entry, 9*time.Second) // as if c1 had read the entry 9 s ago
		b.noteHeld("g")
		b.extend("g", "c1", Held{Entry: entry})
		b.wantHeld("extended", "g", entry, 9*time.Second)
		b.noteHeld("g")
		b.extend("g", "c1", Held{Entry: entry})
		b.noteHeld("g")
		b.wantHeld("extended again and again", "g", entry, 9*time.Second)
		b.setIdle("g", "c2", entry, time.Second)
		b.wantHeld("claimed by another consumer", "g", entry, time.Second)
		b.noteHeld("g")
		b.extend("g", "c2", Held{Entry: entry})
		b.wantHeld("extended by that one", "g", entry, time.Second)
	})
}

// An entry that has just become ready may have a large idle time, because its lease is short. The
// entry counts as held only since it became ready.
func TestNothingIsHeldBeforeItIsReady(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		entry := b.deliver([]string{"g"}, "m")[0].EntryID
		b.setIdle("g", "c1", entry, 29*time.Second) // a lease of 1 s: the visibility timeout of 30 s less 29 s
		b.wantHeld("a short lease", "g", entry, 0)
		b.noteHeld("g")
		b.wantHeld("a short lease that was noted", "g", entry, 0)
	})
}

// A lease of 10 s, with a visibility timeout of 30 s, starts with an idle time of 20 s.
func TestShortLeaseIsHeldSinceItWasGivenOut(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		entry := fmt.Sprintf("%d-0", b.now()-time.Hour.Milliseconds())
		b.do("XADD", b.k.Stream, entry, "id", "m", "attempt", "1")
		r, err := Receive(b.ctx, b.c, b.k, "g", "c1", 10*time.Second, 30*time.Second, 1)
		if err != nil || len(r.Entries) != 1 {
			b.Fatal(err, r)
		}
		b.noteHeld("g")
		b.wantHeld("a short lease that waited for an hour", "g", entry, 0)
		if _, err := ExtendIdle(b.ctx, b.c, b.k, "g", "c1", 20*time.Second, []Held{{Entry: entry}}); err != nil {
			b.Fatal(err)
		}
		b.noteHeld("g")
		b.wantHeld("extended, for less than the visibility timeout", "g", entry, 0)
	})
}

// Of deliveries that were just read, only ten are noted. Of deliveries that are held for longer, up to
// [ReclaimArgs].Notes are noted. The next look removes the notes of ended deliveries.
func TestNotesOfHeldDeliveriesAreBoundedAndRemoved(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		noted := func() int { return strings.Count(b.hash(b.k.Calm)[HeldField("g")], "=") }
		entries := b.readOldEntries("g", "c1", 150)
		b.noteHeld("g")
		redistest.Want(b, "noted of 150 that were just read", noted(), 10)
		for _, entry := range entries {
			b.setIdle("g", "c1", entry, 5*time.Second)
		}
		b.noteHeld("g")
		redistest.Want(b, "noted of 150 that are held", noted(), 100)
		for _, entry := range entries[:120] {
			b.do("XACK", b.k.Stream, "g", entry)
		}
		b.noteHeld("g")
		redistest.Want(b, "noted of 30 that are left", noted(), 30)
		if err := ForgetHeld(b.ctx, b.c, b.k, func(group string) bool { return group != "other" }); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "noted after another group went", noted(), 30)
		if err := ForgetHeld(b.ctx, b.c, b.k, func(string) bool { return false }); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "noted after the group went", noted(), 0)
		redistest.Want(b, "fields that are left, seen_ms and away", b.count("HLEN", b.k.Calm), 2)
		b.noteHeld("g")
		if err := Forget(b.ctx, b.c, b.k); err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "notes of a drained queue", b.count("EXISTS", b.k.Calm), 0)
	})
}

// One delivery that hung, here since 1970, hardly changes the usual duration of deliveries.
func TestOneHungDeliveryDoesNotChangeTheUsualTime(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		usual := func() time.Duration { return ParseHeldNotes(b.hash(b.k.Calm)[HeldField("g")]).Usual }
		entries := b.readOldEntries("g", "c1", 30)
		hung := entries[29]
		for _, entry := range entries[:20] {
			b.setIdle("g", "c1", entry, 2*time.Second)
		}
		b.noteHeld("g")
		redistest.Want(b, "usual before one has ended", usual(), -1)
		for i, entry := range entries[:20] {
			b.do("XACK", b.k.Stream, "g", entry)
			b.noteHeld("g")
			if got := usual(); got < 2*time.Second || got > 10*time.Second {
				b.Fatalf("after %d deliveries of 2 s: %s", i+1, got)
			}
		}
		b.do("HSET", b.k.Calm, HeldField("g"), b.hash(b.k.Calm)[HeldField("g")]+" "+hung+"=1/00000000")
		b.do("XACK", b.k.Stream, "g", hung)
		b.noteHeld("g")
		if got := usual(); got > 20*time.Second {
			b.Errorf("after one that hung since 1970: %s", got)
		}
	})
}
