package lua

import (
	"encoding/base64"
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// redrive calls RedriveDead, which must not fail.
func (b *testQueue) redrive(letters ...Redrive) []Redriven {
	b.Helper()
	out, err := RedriveDead(b.ctx, b.c, b.k, letters)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// bury enqueues, delivers and dead-letters one message, and returns the letter.
func (b *testQueue) bury(group, id, meta string) Letter {
	b.Helper()
	b.groups(group)
	b.enqueue(Item{ID: id, When: After(0), Payload: []byte("payload of " + id), Meta: meta})
	es := b.read(group, "c1", 10)
	b.fail(group, es[len(es)-1].EntryID, ActionDead, ReasonDeadLetter, "boom")
	letters := b.letters()
	return letters[len(letters)-1]
}

// Dead letters keep foreign bytes as they are, and a redrive must keep them, too. Before, a redrive dropped a value
// that is not UTF-8 silently.
func TestRedriveOfDamagedLetters(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for i, c := range []struct {
			fields []string
			check  func(e Entry, letter string)
		}{
			{[]string{"id", "m", "payload", "p", "h:bin", "\xff\x00", "attempt", "x", "max_attempts", "y", "reason", "malformed",
				"group", "g"}, func(e Entry, _ string) {
				redistest.Want(b, "binary header", e.Extra["b64:h:bin"], base64.StdEncoding.EncodeToString([]byte("\xff\x00")))
				redistest.Want(b, "max_attempts", e.MaxAttempts, 0)
			}},
			{[]string{"payload", "p", "color", "red"}, func(e Entry, letter string) {
				redistest.Want(b, "id", e.ID, letter)
				redistest.Want(b, "color", e.Extra["color"], "red")
			}},
			{[]string{"id", "a" + Separator + "b", "payload", "p"},
				func(e Entry, letter string) { redistest.Want(b, "id", e.ID, letter) }},
			{[]string{"id", "\xff", "payload", "p"}, func(e Entry, letter string) { redistest.Want(b, "id", e.ID, letter) }},
			{[]string{"id", "m", "payload", "p", "group", ""}, func(e Entry, _ string) { redistest.Want(b, "for", e.For, "") }},
		} {
			b := b.queue(fmt.Sprint("q", i))
			b.groups("g")
			letter := b.text(append([]string{"XADD", b.k.Dead, "*"}, c.fields...)...)
			wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0)}), RedriveScheduled)
			d := b.drain(1)
			redistest.Want(b, fmt.Sprintf("case %d: drained", i), d.Moved, 1)
			e := b.entries(b.k.Stream)[0]
			redistest.Want(b, "payload", string(e.Payload), "p")
			redistest.Want(b, "attempt", e.Attempt, 1)
			c.check(e, letter)
		}
	})
}

// People type the IDs of letters, so an invalid ID means a letter that does not exist. Before, such an ID stopped the
// batch in the middle, after other letters had been redriven.
func TestRedriveOfAnInvalidLetterIDFindsNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		letter := b.bury("g", "m", "")
		var batch []Redrive
		for _, id := range []string{"", "abc", "-", "+", "(5-1", "5-", "99999999999999999999999-1", letter.EntryID} {
			batch = append(batch, Redrive{Letter: id, When: After(0)})
		}
		out := b.redrive(batch...)
		redistest.Want(b, "the last outcome", out[len(out)-1], RedriveScheduled)
		for _, o := range out[:len(out)-1] {
			redistest.Want(b, "outcome", o, RedriveGone)
		}
		b = b.queue("another")
		letter = b.bury("g", "m2", "")
		if _, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{{Letter: letter.EntryID, When: After(0)},
			{Letter: letter.EntryID, When: "soon"}}); err == nil || errors.Is(err, ErrUnavailable) {
			b.Fatalf("a time that is none: %v", err)
		}
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
	})
}
