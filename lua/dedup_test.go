package lua

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func TestDedupWindowOutlivesTheMessage(t *testing.T) {
	everywhere(t, func(b *rig) {
		keep := Window(time.Hour)
		wantList(b, "first", b.enqueue(Item{ID: "now", When: After(0), Dedup: keep}, Item{ID: "later", When: After(time.Hour),
			Dedup: keep}), Ready, Scheduled)
		wantList(b, "again", b.enqueue(Item{ID: "now", When: After(0), Dedup: keep},
			Item{ID: "later", When: After(0), Dedup: keep}), Duplicate, Duplicate)
		b.makeDue()
		b.drain(10)
		wantList(b, "after delivery", b.enqueue(Item{ID: "now", When: After(0), Dedup: Refuse},
			Item{ID: "later", When: After(0), Dedup: Refuse}), Duplicate, Duplicate)
		// The window ends.
		b.do("ZADD", b.k.Seen, "XX", "1", "now")
		wantList(b, "after the window", b.enqueue(Item{ID: "now", When: After(0), Dedup: Refuse}), Ready)
		b.wantState("due=0 payload=0 meta=0 stream=3 dead=0")
	})
}

// A batch opened a window for an ID, and then delivered a message with the same ID that is not compared. For the rest
// of the batch the window was forgotten, and a third message was not refused.
func TestWindowHoldsBehindAMessageThatIsNotCompared(t *testing.T) {
	everywhere(t, func(b *rig) {
		got := b.enqueue(Item{ID: "m", When: After(0), Dedup: Window(time.Hour)}, Item{ID: "m", When: After(0), Dedup: Fresh},
			Item{ID: "m", When: After(0), Dedup: Refuse})
		wantList(b, "verdicts", got, Ready, Ready, Duplicate)
	})
}

// Two calls with one ID, coalesced into one batch on a queue without windows, were both delivered at once: whether
// there are windows was looked up once, before the batch opened the first.
func TestDedupHoldsWithinOneBatch(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, when := range []When{After(0), After(time.Hour)} {
			item := Item{ID: "m" + string(when), When: when, Dedup: Window(time.Hour)}
			got := b.enqueue(item, item, item)
			if got[0] == Duplicate || got[1] != Duplicate || got[2] != Duplicate {
				b.Fatalf("three times the same ID in one batch, due %s: %v", when, got)
			}
		}
		b.wantState("due=1 payload=0 meta=0 stream=1 dead=0")
	})
}

func TestDedupRefusedIDsDoNotProlongTheWindow(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "m", When: After(0), Dedup: Window(time.Minute)})
		ends := b.texts("ZRANGE", b.k.Seen, "0", "-1", "WITHSCORES")
		b.enqueue(Item{ID: "m", When: After(0), Dedup: Window(time.Hour)})
		wantList(b, "windows", b.texts("ZRANGE", b.k.Seen, "0", "-1", "WITHSCORES"), ends...)
	})
}

// The reply of a call was lost, and the SDK repeats the call: nothing that the first call did is done again, not even
// an immediate delivery.
func TestRepeatedTokenChangesNothing(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "known", When: After(time.Hour)})
		call := []Item{
			{ID: "now", When: After(0), Payload: []byte("p")},
			{ID: "later", When: After(time.Hour), Payload: []byte("p")},
			{ID: "known", When: After(time.Hour), Dedup: Refuse},
		}
		token := Token{Name: "call-1", Window: time.Minute}
		first, err := Enqueue(b.ctx, b.c, b.k, token, call, Durability{})
		if err != nil {
			b.Fatal(err)
		}
		// Programs of two releases may run side by side: the number is the index of the ID among the arguments.
		redistest.Want(b, "marks of the third", b.count("ZCOUNT", b.k.Seen, "-inf", "+inf"), 3)
		b.text("ZSCORE", b.k.Seen, Separator+"call-1"+Separator+"14")
		before := b.state()
		head := b.token()
		second, err := Enqueue(b.ctx, b.c, b.k, token, call, Durability{})
		if err != nil {
			b.Fatal(err)
		}
		wantList(b, "verdicts", []Verdict{second[0].Verdict, second[1].Verdict, second[2].Verdict}, Repeated, Repeated, Duplicate)
		redistest.Want(b, "due, repeated", second[1].Due, first[1].Due)
		b.wantState(before)
		redistest.Want(b, "wake token", b.token(), head)

		b.makeDue()
		b.drain(10)
		before = b.state()
		wantList(b, "repeated after delivery", b.enqueueAs(token, call...), Repeated, Repeated, Duplicate)
		b.wantState(before)
		// Another call with other messages is another call.
		wantList(b, "next call", b.enqueueAs(Token{Name: "call-2", Done: "call-1", Window: time.Minute},
			Item{ID: "next", When: After(0)}), Ready)
		for _, m := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
			if strings.HasPrefix(m, Separator+"call-1") {
				b.Fatalf("the previous token, or what it refused, is still remembered: %q", m)
			}
		}
	})
}

func TestRefusedCallIsNotRememberedAsDone(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.do("SET", b.k.Payload, "a string where a hash belongs")
		token := Token{Name: "call", Window: time.Minute}
		for _, body := range []string{"p", ""} {
			item := Item{ID: "m", When: After(time.Hour), Payload: []byte(body)}
			if _, err := Enqueue(b.ctx, b.c, b.k, token, []Item{item}, Durability{}); !errors.Is(err, ErrWrongType) {
				b.Fatal("accepted, or refused for another reason: ", err)
			}
			redistest.Want(b, "keys", b.count(append([]string{"EXISTS"}, keysOf(b.k)...)...), 1)
		}
		b.do("DEL", b.k.Payload)
		wantList(b, "repeated", b.enqueueAs(token, Item{ID: "m", When: After(0)}), Ready)
	})
}

// Windows must also end if nobody trims: each enqueue that compares IDs removes some ended windows, up to a bound.
func TestSeenIsExpiredInBoundedSteps(t *testing.T) {
	everywhere(t, func(b *rig) {
		args := []string{"ZADD", b.k.Seen}
		for i := range 500 {
			args = append(args, "1000", "old"+ms(int64(i)))
		}
		b.do(append(args, ms(b.now()+3_600_000), "valid")...)
		b.enqueue(Item{ID: "m", When: After(time.Hour), Dedup: Refuse})
		left := b.count("ZCARD", b.k.Seen)
		if left >= 501 || left < 450 {
			b.Fatalf("one call left %d of 501", left)
		}
		for range 200 {
			b.enqueue(Item{ID: "m", When: After(time.Hour), Dedup: Refuse})
		}
		wantList(b, "remembered", b.texts("ZRANGE", b.k.Seen, "0", "-1"), "valid")
	})
}

func TestTokensAreNoMessageIDs(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueueAs(Token{Name: "m", Window: time.Hour}, Item{ID: "x", When: After(0)})
		wantList(b, "a message named like a token", b.enqueue(Item{ID: "m", When: After(0), Dedup: Refuse}), Ready)
		for _, m := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
			if !strings.HasPrefix(m, Separator) {
				b.Errorf("remembered %q", m)
			}
		}
	})
}

func TestCancelTakesEverythingBack(t *testing.T) {
	everywhere(t, func(b *rig) {
		item := Item{ID: "m", When: After(time.Hour), Payload: []byte("p"), Meta: EncodeMeta(map[string]string{"a": "b"}, 0,
			time.Time{}), Dedup: Window(time.Hour)}
		b.enqueue(item, Item{ID: "other", When: After(time.Hour), Payload: []byte("p")})
		got, err := Cancel(b.ctx, b.c, b.k, []string{"nope", "m", "m"}, Durability{})
		if err != nil {
			b.Fatal(err)
		}
		wantList(b, "cancelled", got, false, true, false)
		b.wantState("due=1 payload=1 meta=0 stream=0 dead=0")
		redistest.Want(b, "windows", b.count("ZCARD", b.k.Seen), 0)
		wantList(b, "the ID is free again", b.enqueue(item), Scheduled)
		b.makeDue()
		b.drain(10)
		if got, err = Cancel(b.ctx, b.c, b.k, []string{"m"}, Durability{}); err != nil || got[0] {
			b.Fatalf("cancelled what is ready: %v %v", got, err)
		}
		redistest.Want(b, "windows after a cancel that came too late", b.count("ZCARD", b.k.Seen), 1)
	})
}

func TestCancelOfAMessageLeavesItsRetriesAlone(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.fail("g", e.EntryID, ActionRetry, ReasonMaxAttempts, "x")
		got, err := Cancel(b.ctx, b.c, b.k, []string{"m"}, Durability{})
		if err != nil || got[0] {
			b.Fatalf("%v %v", got, err)
		}
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=0 g=0", "g")
	})
}

func TestRescheduleMovesWhatIsStillScheduled(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.enqueue(Item{ID: "m", When: After(time.Hour)}, Item{ID: "n", When: After(2 * time.Hour)})
		steps := []struct {
			id    string
			when  When
			moved bool
			wake  bool
		}{
			{"m", After(3 * time.Hour), true, false},
			{"n", After(4 * time.Hour), true, false},
			{"n", After(time.Minute), true, true},
			{"m", At(time.UnixMilli(b.now() + 5000)), true, true},
			{"gone", After(0), false, false},
		}
		for _, s := range steps {
			before, from := b.token(), b.now()
			due, moved, err := Reschedule(b.ctx, b.c, b.k, s.id, s.when, Durability{})
			if err != nil {
				b.Fatal(err)
			}
			redistest.Want(b, s.id+" moved", moved, s.moved)
			redistest.Want(b, s.id+" woke", b.token() != before, s.wake)
			if moved {
				redistest.Want(b, "due", float64(due.UnixMilli()), b.dueOf(s.id))
				if due.UnixMilli() < from {
					b.Errorf("due %d before %d", due.UnixMilli(), from)
				}
			}
		}
		redistest.Want(b, "scheduled", b.count("ZCARD", b.k.Due), 2)
		if _, _, err := Reschedule(b.ctx, b.c, b.k, "m", "soon", Durability{}); err == nil {
			b.Fatal("accepted a time that is none")
		}
	})
}
