package lua

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// If the reply of a call is lost, the SDK repeats the call with the same token. The repeat must do nothing again that
// the first call did, not even an immediate delivery.
func TestRepeatedTokenChangesNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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
		// Remembered are the token, the refusal of the third message, and that the call has refusals. Programs of other
		// releases must find the refusal, so its name is fixed: 14 is the index of the message's ID among the
		// arguments.
		redistest.Want(b, "members of seen", b.count("ZCOUNT", b.k.Seen, "-inf", "+inf"), 3)
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
		// The next call tells that the first reply has arrived, so the first token is forgotten.
		wantList(b, "next call", b.enqueueAs(Token{Name: "call-2", Done: "call-1", Window: time.Minute},
			Item{ID: "next", When: After(0)}), Ready)
		for _, m := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
			if strings.HasPrefix(m, Separator+"call-1") {
				b.Fatalf("the previous token, or what it refused, is still remembered: %q", m)
			}
		}
	})
}

// A call that is refused as a whole must not store its token, so that its repeat runs.
func TestRefusedCallIsNotRememberedAsDone(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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
	everywhere(t, func(b *testQueue) {
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

// A token must not open a dedup window for the message ID with the same text: both are remembered in one set.
func TestTokensAreNoMessageIDs(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.enqueueAs(Token{Name: "m", Window: time.Hour}, Item{ID: "x", When: After(0)})
		wantList(b, "a message named like a token", b.enqueue(Item{ID: "m", When: After(0), Dedup: Refuse}), Ready)
		for _, m := range b.texts("ZRANGE", b.k.Seen, "0", "-1") {
			if !strings.HasPrefix(m, Separator) {
				b.Errorf("remembered %q", m)
			}
		}
	})
}
