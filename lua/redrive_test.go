package lua

import (
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

func (b *rig) redrive(letters ...Redrive) []Redriven {
	b.Helper()
	out, err := RedriveDead(b.ctx, b.c, b.k, letters)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// bury enqueues, delivers and dead-letters one message, and returns the letter.
func (b *rig) bury(group, id, meta string) Entry {
	b.Helper()
	b.groups(group)
	b.enqueue(Item{ID: id, When: After(0), Payload: []byte("payload of " + id), Meta: meta})
	es := b.read(group, "c1", 10)
	b.fail(group, es[len(es)-1].EntryID, ActionDead, ReasonDeadLetter, "boom")
	letters := b.entries(b.k.Dead)
	return letters[len(letters)-1]
}

func TestRedriveComesBackForItsGroup(t *testing.T) {
	everywhere(t, func(b *rig) {
		letter := b.bury("a", "m", EncodeMeta(map[string]string{"trace": "ü"}, 5, time.UnixMilli(b.now()+3_600_000)))
		b.groups("b")
		head := b.token()
		wantList(b, "outcomes", b.redrive(Redrive{Letter: letter.EntryID, When: After(0)},
			Redrive{Letter: letter.EntryID, When: After(0)}, Redrive{Letter: "5-1", When: After(0)}), RedriveScheduled,
			RedriveGone, RedriveGone)
		redistest.Want(b, "woke", b.token() != head, true)
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=0 a=0 b=0", "a", "b")
		b.drain(1)
		e := b.read("a", "c1", 1)[0]
		redistest.Want(b, "for", e.For, "a")
		redistest.Want(b, "attempt", e.Attempt, 1)
		redistest.Want(b, "id", e.ID, "m")
		redistest.Want(b, "payload", string(e.Payload), "payload of m")
		redistest.Want(b, "header", e.Headers["trace"], "ü")
		redistest.Want(b, "max_attempts", e.MaxAttempts, 5)
		redistest.Want(b, "expires", e.Expires.IsZero(), true)
		for _, gone := range []string{e.Error, e.Group, e.Reason, e.Entry} {
			redistest.Want(b, "a field of the dead letter", gone, "")
		}
		redistest.Want(b, "extra", len(e.Extra), 0)
		// It may fail and be redriven again.
		b.read("b", "c1", 10)
		b.fail("a", e.EntryID, ActionDead, "", "")
		again := b.entries(b.k.Dead)[0]
		redistest.Want(b, "letter is new", again.EntryID != letter.EntryID, true)
		wantList(b, "outcome", b.redrive(Redrive{Letter: again.EntryID, When: After(time.Hour)}), RedriveScheduled)
	})
}

func TestRedriveOfAnExpiredMessageIsForAll(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("a")
		b.enqueue(Item{ID: "m", When: After(0), Meta: EncodeMeta(nil, 0, time.UnixMilli(5))})
		b.drain(1)
		wantList(b, "outcome", b.redrive(Redrive{Letter: b.entries(b.k.Dead)[0].EntryID, When: After(0)}), RedriveScheduled)
		redistest.Want(b, "drained", b.drain(1).Moved, 1)
		e := b.read("a", "c", 1)[0]
		redistest.Want(b, "for", e.For, "")
		redistest.Want(b, "expires", e.Expires.IsZero(), true)
	})
}

func TestRedriveEdited(t *testing.T) {
	everywhere(t, func(b *rig) {
		body, empty := []byte("mended\x00\xff"), []byte{}
		soon := time.UnixMilli(b.now() + 3_600_000)
		for i, c := range []struct {
			redrive  Redrive
			payload  string
			headers  string
			max      int
			expires  bool
			redriven Redriven
		}{
			{Redrive{Payload: &body}, "mended\x00\xff", "map[a:1 b:2]", 5, false, RedriveScheduled},
			{Redrive{Payload: &empty}, "", "map[a:1 b:2]", 5, false, RedriveScheduled},
			{Redrive{Fields: EncodeMeta(map[string]string{"c": "3"}, 0, time.Time{})}, "payload of m", "map[c:3]", 0, false,
				RedriveScheduled},
			{Redrive{Fields: EncodeMeta(nil, 7, soon)}, "payload of m", "map[]", 7, true, RedriveScheduled},
			{Redrive{Fields: `{}`}, "payload of m", "map[]", 0, false, RedriveScheduled},
			{Redrive{Fields: `{"for":"x","id":"other","attempt":"9","h:c":"3"}`}, "payload of m", "map[c:3]", 0, false,
				RedriveScheduled},
			{Redrive{Fields: `{"h:c":3}`}, "", "", 0, false, RedriveMalformed},
			{Redrive{Fields: `[]`}, "", "", 0, false, RedriveMalformed},
			{Redrive{Fields: `{"h:c":`}, "", "", 0, false, RedriveMalformed},
			{Redrive{Fields: `{"payload":"x"}`}, "", "", 0, false, RedriveMalformed},
			{Redrive{Fields: `{"expires_ms":"x"}`}, "", "", 0, false, RedriveMalformed},
		} {
			b := b.queue(fmt.Sprint("q", i))
			letter := b.bury("g", "m", EncodeMeta(map[string]string{"a": "1", "b": "2"}, 5, soon))
			c.redrive.Letter, c.redrive.When = letter.EntryID, After(0)
			wantList(b, "outcome of "+c.redrive.Fields, b.redrive(c.redrive), c.redriven)
			if c.redriven != RedriveScheduled {
				b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
				continue
			}
			b.drain(1)
			e := b.read("g", "c1", 1)[0]
			redistest.Want(b, "payload", string(e.Payload), c.payload)
			redistest.Want(b, "headers", fmt.Sprint(e.Headers),
				map[bool]string{true: c.headers, false: "map[]"}[len(e.Headers) > 0])
			redistest.Want(b, "number of headers", len(e.Headers) > 0, c.headers != "map[]")
			redistest.Want(b, "max_attempts", e.MaxAttempts, c.max)
			redistest.Want(b, "expires", !e.Expires.IsZero(), c.expires)
			redistest.Want(b, "id, for, attempt", fmt.Sprint(e.ID, e.For, e.Attempt), "mg1")
			b.ack("g", Held{Entry: e.EntryID})
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		}
	})
}

func TestRedriveOfALostBodyNeedsAPayload(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		letter := b.text("XADD", b.k.Dead, "*", "id", "m", "reason", ReasonBodyLost, "group", "g", "dead_ms", "5")
		before := b.state("g")
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0)}), RedriveNoPayload)
		b.wantState(before, "g")
		body := []byte("from the archive")
		wantList(b, "outcome", b.redrive(Redrive{Letter: letter, When: After(0), Payload: &body}), RedriveScheduled)
		b.drain(1)
		e := b.read("g", "c", 1)[0]
		redistest.Want(b, "delivered", e.ID+" "+string(e.Payload)+" "+e.For, "m from the archive g")
	})
}

// Dead letters keep foreign bytes as they are. On a redrive, a value that is not UTF-8 was dropped silently.
func TestRedriveOfDamagedLetters(t *testing.T) {
	everywhere(t, func(b *rig) {
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

// A redrive and a purge race for one letter: XDEL decides.
func TestRedriveAndPurgeAreExclusive(t *testing.T) {
	everywhere(t, func(b *rig) {
		letter := b.bury("g", "m", "")
		redistest.Want(b, "purged", b.count("XDEL", b.k.Dead, letter.EntryID), 1)
		wantList(b, "redriven", b.redrive(Redrive{Letter: letter.EntryID, When: After(0)}), RedriveGone)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		letter = b.bury("g", "m", "")
		wantList(b, "redriven", b.redrive(Redrive{Letter: letter.EntryID, When: After(0)}), RedriveScheduled)
		redistest.Want(b, "purged", b.count("XDEL", b.k.Dead, letter.EntryID), 0)
	})
}

// People type the IDs of letters. An invalid one stopped the batch in the middle, after others had been redriven.
func TestRedriveOfWhatIsNoEntryIDIsGone(t *testing.T) {
	everywhere(t, func(b *rig) {
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
