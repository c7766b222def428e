package lua

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// ackResult acknowledges an entry with a result that is kept for a minute.
func (b *testQueue) ackResult(group string, e Entry, value string) bool {
	b.Helper()
	ok, err := AckResult(b.ctx, b.c, b.k, group, Held{Entry: e.EntryID, ID: e.ID, Key: e.Extra[FieldKey]}, e.Attempt,
		time.Minute, []byte(value))
	if err != nil {
		b.Fatal(err)
	}
	return ok
}

// resultOf reads the result of message m.
func (b *testQueue) resultOf(group string) (Result, bool) {
	b.Helper()
	r, ok, err := ReadResult(b.ctx, b.c, []Keys{b.queue("another").k, b.k}, group, "m")
	if err != nil {
		b.Fatal(err)
	}
	return r, ok
}

// A result is stored with the acknowledgement, for one group, of any bytes, with the time and the attempt; it is gone
// after its age, and then nothing of it is left.
func TestResultIsStoredWithTheAcknowledgement(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, value := range []string{"", "paid", "\x00\xff\n7", strings.Repeat("x", MaxResultBytes)} {
			e := b.deliver([]string{"g", "h é"}, "m")[0]
			e.Attempt = 3
			before := b.now()
			redistest.Want(b, "acknowledged", b.ackResult("h é", e, value), true)
			r, ok := b.resultOf("h é")
			if !ok || string(r.Value) != value || r.Attempt != 3 || r.Entry != e.EntryID || r.Done.UnixMilli() < before {
				b.Errorf("%.20q: %v %v", value, r, ok)
			}
			_, ok = b.resultOf("g")
			redistest.Want(b, "a result of the other group", ok, false)
			redistest.Want(b, "pending in the other group", b.pending("g"), 1)
			redistest.Want(b, "acknowledged twice", b.ackResult("h é", e, "twice"), false)
			again, _ := b.resultOf("h é")
			redistest.Want(b, "the result after a second call", string(again.Value) == value, true)
			if left := b.count("PTTL", b.k.Result("h é", "m")); left < 1 || left > 60000 {
				b.Errorf("the result is kept for %d ms", left)
			}
			b.ack("g", Held{Entry: e.EntryID})
			redistest.Want(b, "entries", b.count("XLEN", b.k.Stream), 0)
		}
	})
}

// A delivery that was lost stores nothing.
func TestResultOfALostDeliveryIsNotStored(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		other := e
		other.ID = "another message"
		redistest.Want(b, "another message", b.ackResult("g", other, "x"), false)
		redistest.Want(b, "pending", b.pending("g"), 1)
		b.abandon("g", "c1", e.EntryID)
		b.reclaim("g", time.Minute)
		redistest.Want(b, "reclaimed", b.ackResult("g", e, "x"), false)
		_, ok := b.resultOf("g")
		redistest.Want(b, "a result", ok, false)
	})
}

// An acknowledgement with a result passes the ordering key on at once.
func TestResultPassesTheKeyOn(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		keyed := EncodeMeta(nil, 0, time.Time{}, FieldValue{Field: FieldKey, Value: "k"})
		b.enqueue(Item{ID: "m", When: After(0), Meta: keyed}, Item{ID: "n", When: After(0), Meta: keyed})
		b.drain(10)
		e := b.read("g", "c1", 10)
		redistest.Want(b, "ready", len(e), 1)
		redistest.Want(b, "acknowledged", b.ackResult("g", e[0], "x"), true)
		b.drain(10)
		redistest.Want(b, "ready next", b.read("g", "c1", 10)[0].ID, "n")
	})
}

// The history tells an acknowledgement with a result once, and not the result.
func TestHistoryTellsAnAcknowledgementWithAResult(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.keepHistory()
		redistest.Want(b, "acknowledged", b.ackResult("g", e, "paid"), true)
		redistest.Want(b, "acknowledged twice", b.ackResult("g", e, "paid"), false)
		wantList(b, "told", b.told(), "acknowledged m g client c")
	})
}

// What does not fit is refused before the entry is acknowledged.
func TestResultThatIsTooLargeIsRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		_, err := AckResult(b.ctx, b.c, b.k, "g", Held{Entry: e.EntryID, ID: e.ID}, 1, time.Minute,
			[]byte(strings.Repeat("x", MaxResultBytes+1)))
		if err == nil || !strings.Contains(err.Error(), "value has 65537 bytes; the limit is 65536") {
			b.Errorf("a large value: %v", err)
		}
		redistest.Want(b, "pending", b.pending("g"), 1)
		b.do("SET", b.k.Result("g", "m"), "no result")
		if _, _, err := ReadResult(b.ctx, b.c, []Keys{b.k}, "g", "m"); err == nil {
			b.Error("a text that is no result was read")
		}
	})
}
