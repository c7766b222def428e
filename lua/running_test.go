package lua

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// cancelRunning walks through the stream and returns what it found in words: the entry's message, group, verdict,
// consumer.
func (b *testQueue) cancelRunning(group string, ids ...string) (found []string) {
	b.Helper()
	w := EntryWalk{Limit: 2, Group: group}
	for {
		next, some, err := CancelEntries(b.ctx, b.c, b.k, w, ids, Durability{})
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range some {
			found = append(found, strings.TrimSpace(fmt.Sprint(f.ID, " ", f.Group, " ", f.Verdict, " ", f.Consumer)))
		}
		if w = next; w.Cursor == "" {
			return found
		}
	}
}

// extends calls Extend, which must not fail, and returns its results.
func (b *testQueue) extends(group, consumer string, held ...Held) []Extended {
	b.Helper()
	got, err := Extend(b.ctx, b.c, b.k, group, consumer, held)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

// Go and the scripts must use the same number as the mark of a cancelled delivery.
func TestCancelMarkMatchesTheScripts(t *testing.T) {
	text := readSource("lib/cancel.lua")
	m := regexp.MustCompile(`CANCELLED_FROM = (\d+)`).FindStringSubmatch(text)
	if m == nil || m[1] != strconv.Itoa(CancelledMark) {
		t.Errorf("the mark of the scripts is %q, and that of Go %d", m, CancelledMark)
	}
}

// The attempt of a foreign entry may be any text. Regression: the exit failed with an error of Lua, so the entry stayed
// pending, and the other entries of the call as well.
func TestCancelledEntryWithAnAttemptThatIsNoNumberEnds(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p", "attempt", "abc")
		e := b.read("g", "c", 1)[0]
		wantList(b, "found", b.cancelRunning("", "m"), "m g 2 c")
		redistest.Want(b, "outcome", b.fail("g", e.EntryID, ActionRetry, "max_attempts", "no"), CancelledOut)
		redistest.Want(b, "pending", b.pending("g"), 0)
	})
}

// An occurrence that must not overlap with the next is finished once it was cancelled and nobody holds it any more.
func TestCancelledOccurrenceIsFinished(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		one := Item{ID: "m", When: After(0), Payload: []byte("p"), Meta: `{"overlap":"skip"}`}
		b.enqueue(one)
		b.cancelRunning("", "m")
		redistest.Want(b, "ready, and cancelled", b.unfinished(&Unfinished{}, "m"), false)
		b.enqueue(one)
		e := b.read("g", "c", 1)[0]
		b.cancelRunning("", "m")
		redistest.Want(b, "held, and cancelled", b.unfinished(&Unfinished{}, "m"), true)
		redistest.Want(b, "ended", b.fail("g", e.EntryID, ActionRetry, "max_attempts", "no"), CancelledOut)
		redistest.Want(b, "let go", b.unfinished(&Unfinished{}, "m"), false)
	})
}

// A worker that goes on with a cancelled message keeps it, and its key, until it settles it, or has not extended it for
// the visibility timeout. XAUTOCLAIM drops a deleted entry, however short its idle time is.
func TestACancelledHolderIsNotTakenForADeadOne(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("holds", "unread")
		b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
		b.drain(10)
		e := b.read("holds", "c", 1)[0]
		wantList(b, "found", b.cancelRunning("", "m"), "m holds 2 c", "m  1")
		redistest.Want(b, "reclaimed while it is held", b.reclaim("holds", time.Hour), Reclaimed{})
		wantList(b, "extended", b.extends("holds", "c", heldOf(e)...), HeldCancelled)
		if !b.inProcess() { // that server does not count a deleted entry as pending
			b.passTurns()
			b.drain(10)
			wantList(b, "the next one of the key", ids(b.read("unread", "c", 10)))
		}
		redistest.Want(b, "reclaimed when it is idle", b.reclaim("holds", 0), Reclaimed{Cancelled: 1})
		b.passTurns()
		b.drain(10)
		wantList(b, "the next one of the key then", ids(b.read("unread", "c", 10)), "next")
	})
}
