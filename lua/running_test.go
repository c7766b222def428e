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
func (b *rig) cancelRunning(group string, ids ...string) (found []string) {
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

// extends returns the answers of Extend.
func (b *rig) extends(group, consumer string, held ...Held) []Extended {
	b.Helper()
	got, err := Extend(b.ctx, b.c, b.k, group, consumer, held)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func TestMarkOfTheScripts(t *testing.T) {
	text := readSource("lib/cancel.lua")
	m := regexp.MustCompile(`CANCELLED_FROM = (\d+)`).FindStringSubmatch(text)
	if m == nil || m[1] != strconv.Itoa(CancelledMark) {
		t.Errorf("the mark of the scripts is %q, and that of Go %d", m, CancelledMark)
	}
}

// An entry that no group holds is deleted, whoever has read it; its dedup window and its key's turn go with it.
func TestCancelDeletesWhatNobodyHolds(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g", "h")
		for i := range 7 {
			b.enqueue(Item{ID: fmt.Sprint("m", i), When: After(0), Dedup: Window(time.Hour)})
		}
		b.ack("h", heldOf(b.read("h", "c", 2)...)...)
		wantList(b, "found", b.cancelRunning("", "m1", "m5", "nobody"), "m1  1", "m5  1")
		redistest.Want(b, "windows", b.count("ZCARD", b.k.Seen), 5)
		wantList(b, "delivered to g", ids(b.read("g", "c", 10)), "m0", "m2", "m3", "m4", "m6")
		wantList(b, "delivered to h", ids(b.read("h", "c", 10)), "m2", "m3", "m4", "m6")
		wantList(b, "again", b.cancelRunning("", "m1", "m5"))
	})
}

// A delivery that a consumer holds is marked. The consumer learns it with its extend; any outcome of it ends the
// message, and only then the next message of the key becomes due. The same holds if the consumer dies.
func TestCancelOfWhatIsHeldEndsIt(t *testing.T) {
	everywhere(t, func(b *rig) {
		exits := func(action Action) func(e Entry) {
			return func(e Entry) {
				redistest.Want(b, string(action), b.fail("g", e.EntryID, action, "max_attempts", "no"), CancelledOut)
			}
		}
		ends := []struct {
			name string
			end  func(e Entry)
		}{
			{"cancel", exits(ActionCancel)}, {"retry", exits(ActionRetry)}, {"dead", exits(ActionDead)},
			{"release", exits(ActionRelease)},
			{"ack", func(e Entry) { wantList(b, "ack", b.ack("g", heldOf(e)...), true) }},
			{"a dead holder", func(e Entry) {
				redistest.Want(b, "too early", b.reclaim("g", time.Minute), Reclaimed{})
				b.abandon("g", "c", e.EntryID)
				redistest.Want(b, "reclaimed", b.reclaim("g", time.Minute), Reclaimed{Cancelled: 1})
			}},
		}
		b.groups("g")
		b.keepHistory()
		at := 0
		for _, one := range ends {
			b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
			e := b.wantDelivered([]string{"g"}, "m")[0]
			wantList(b, "found", b.cancelRunning("", "m"), "m g 2 c")
			wantList(b, "found again", b.cancelRunning("", "m"), "m g 2 c")
			n, owner, _ := b.counter("g", e.EntryID)
			deliveries, cancelled := Deliveries(n)
			redistest.Want(b, "mark", fmt.Sprint(deliveries, " ", cancelled, " ", owner), "1 true c")
			wantList(b, "extended", b.extends("g", "c", Held{Entry: e.EntryID, ID: "m"}), HeldCancelled)
			b.do("XCLAIM", b.k.Stream, "g", "c", "0", e.EntryID, "JUSTID") // as a worker without our scripts extends it
			wantList(b, "extended again", b.extends("g", "c", Held{Entry: e.EntryID, ID: "m"}), HeldCancelled)
			b.wantDelivered([]string{"g"}) // the key is held
			b.passTurns()
			b.wantDelivered([]string{"g"})
			at = len(b.told())
			one.end(e)
			told := b.told()[at:]
			if one.name != "ack" && !strings.HasPrefix(strings.Join(told, "; "), "cancelled m g") {
				b.Errorf("%s: told is %q", one.name, told)
			}
			next := b.wantDelivered([]string{"g"}, "next")
			b.ack("g", heldOf(next...)...)
			b.wantNoTurns()
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		}
	})
}

// The attempt of a foreign entry may be any text. Regression: the exit failed with an error of Lua, so the entry stayed
// pending, and the other entries of the call as well.
func TestCancelledEntryWithAnAttemptThatIsNoNumberEnds(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p", "attempt", "abc")
		e := b.read("g", "c", 1)[0]
		wantList(b, "found", b.cancelRunning("", "m"), "m g 2 c")
		redistest.Want(b, "outcome", b.fail("g", e.EntryID, ActionRetry, "max_attempts", "no"), CancelledOut)
		redistest.Want(b, "pending", b.pending("g"), 0)
	})
}

// One group holds the entry, one has not read it, one is done. It is deleted for the second. For the first it ends
// without a dead letter, although it has no body any more.
func TestCancelAmongSeveralGroups(t *testing.T) {
	everywhere(t, func(b *rig) {
		exits := func(action Action) func(e Entry) {
			return func(e Entry) {
				redistest.Want(b, string(action), b.fail("holds", e.EntryID, action, "max_attempts", "no"), CancelledOut)
			}
		}
		ends := map[string]func(e Entry){
			"cancel": exits(ActionCancel), "retry": exits(ActionRetry),
			"ack": func(e Entry) { wantList(b, "ack", b.ack("holds", heldOf(e)...), true) },
			"a dead holder": func(e Entry) {
				redistest.Want(b, "reclaimed", b.reclaim("holds", 0), Reclaimed{Cancelled: 1})
			},
		}
		b.groups("holds", "unread", "done")
		for name, end := range ends {
			b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
			b.drain(10)
			b.ack("done", heldOf(b.read("done", "c", 1)...)...)
			e := b.read("holds", "c", 1)[0]
			wantList(b, name+": found", b.cancelRunning("", "m"), "m holds 2 c", "m  1")
			wantList(b, name+": extended", b.extends("holds", "c", Held{Entry: e.EntryID, ID: "m"}), HeldCancelled)
			wantList(b, name+": still held", b.extends("holds", "c", Held{Entry: e.EntryID, ID: "m"}), HeldCancelled)
			b.passTurns()
			b.drain(10)
			wantList(b, name+": not delivered", ids(b.read("unread", "c", 10)))
			end(e)
			b.passTurns()
			b.drain(10)
			for _, group := range []string{"holds", "unread", "done"} {
				next := b.read(group, "c", 10)
				wantList(b, name+": delivered to "+group, ids(next), "next")
				b.ack(group, heldOf(next...)...)
			}
			b.wantNoTurns()
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 holds=0 unread=0 done=0", "holds", "unread", "done")
		}
	})
}

// For one group, an entry is deleted only if no other group needs it. If the group has not read an entry that another
// one needs, the entry stays, and the answer says so.
func TestCancelForOneGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g", "h")
		b.enqueue(Item{ID: "m", When: After(0)})
		wantList(b, "unread by both", b.cancelRunning("g", "m"), "m g 3")
		e := b.read("h", "c", 1)[0]
		wantList(b, "held by the other", b.cancelRunning("g", "m"), "m g 3")
		b.read("g", "c", 1)
		wantList(b, "held", b.cancelRunning("g", "m"), "m g 2 c")
		wantList(b, "the other goes on", b.extends("h", "c", Held{Entry: e.EntryID}), StillHeld)
		redistest.Want(b, "ended", b.fail("g", e.EntryID, ActionRetry, "", "no"), CancelledOut)
		redistest.Want(b, "the other retries", b.fail("h", e.EntryID, ActionRetry, "", "no"), Retried)
		b.makeDue()
		b.drain(10)
		wantList(b, "a retry for another group", b.cancelRunning("g", "m"))
		wantList(b, "its own", b.cancelRunning("h", "m"), "m h 1")
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0 h=0", "g", "h")
		b.enqueue(Item{ID: "done", When: After(0)})
		b.ack("h", heldOf(b.read("h", "c", 1)...)...)
		wantList(b, "the other is done", b.cancelRunning("g", "done"), "done g 1")
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0 h=0", "g", "h")
		wantList(b, "no such group", b.cancelRunning("nobody", "m"))
	})
}

// The key of an entry that nobody holds is free at once, and the bridge is woken for the next message.
func TestCancelOfAReadyMessageFreesItsKey(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
		b.drain(10)
		token := b.token()
		wantList(b, "found", b.cancelRunning("", "m"), "m  1")
		redistest.Want(b, "woke the bridge", b.token() != token, true)
		b.ack("g", heldOf(b.wantDelivered([]string{"g"}, "next")...)...)
		b.wantNoTurns()
	})
}

// An occurrence that must not overlap with the next is finished once it was cancelled and nobody holds it any more.
func TestCancelledOccurrenceIsFinished(t *testing.T) {
	everywhere(t, func(b *rig) {
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
	everywhere(t, func(b *rig) {
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
