package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// Many changes of one thing within a while leave one message, with the content of the last change.
func TestReplaceTakesThePlaceOfWhatIsScheduled(t *testing.T) {
	everywhere(t, func(b *rig) {
		with := func(when When, payload, header string, how Dedup) Item {
			meta := ""
			if header != "" {
				meta = EncodeMeta(map[string]string{"h": header}, 0, time.Time{})
			}
			return Item{ID: "m", When: when, Payload: []byte(payload), Meta: meta, Dedup: how}
		}
		hour, far := After(time.Hour), After(2*time.Hour)
		for _, c := range []struct {
			what  string
			first []Item
			then  Item
			want  Verdict
			left  string // payload and header of what is scheduled; "" = nothing
		}{
			{"nothing there", nil, with(hour, "new", "x", Replace), Scheduled, "new x"},
			{"replace", []Item{with(hour, "old", "x", Refuse)}, with(hour, "new", "y", Replace), Replaced, "new y"},
			{"replace, earlier", []Item{with(far, "old", "x", Refuse)}, with(hour, "new", "", Replace), Replaced, "new "},
			{"without a payload", []Item{with(hour, "old", "x", Refuse)}, with(hour, "", "y", Replace), Replaced, " y"},
			{"later", []Item{with(hour, "old", "x", Refuse)}, with(far, "new", "", ReplaceLater), Replaced, "new "},
			{"not later", []Item{with(far, "old", "x", Refuse)}, with(hour, "new", "", ReplaceLater), Duplicate, "old x"},
			{"as late", []Item{with("4999999999999", "old", "", Refuse)}, with("4999999999999", "new", "", ReplaceLater), Duplicate,
				"old "},
			{"earlier", []Item{with(far, "old", "x", Refuse)}, with(hour, "new", "", ReplaceEarlier), Replaced, "new "},
			{"not earlier", []Item{with(hour, "old", "x", Refuse)}, with(far, "new", "", ReplaceEarlier), Duplicate, "old x"},
			{"as early", []Item{with("4999999999999", "old", "", Refuse)}, with("4999999999999", "new", "", ReplaceEarlier), Duplicate,
				"old "},
			{"ready at once", []Item{with(hour, "old", "x", Refuse)}, with(After(0), "new", "", Replace), Ready, ""},
			{"earlier, and ready at once", []Item{with(hour, "old", "x", Refuse)}, with(After(0), "new", "", ReplaceEarlier), Ready, ""},
			{"in a window, and scheduled", []Item{with(hour, "old", "x", Window(time.Hour))}, with(hour, "new", "", Replace), Replaced,
				"new "},
			{"in a window, and delivered", []Item{with(After(0), "old", "x", Window(time.Hour))}, with(hour, "new", "", Replace),
				Duplicate, ""},
			{"refused by others afterwards", []Item{with(hour, "old", "x", Replace)}, with(hour, "new", "", Refuse), Duplicate, "old x"},
		} {
			b.do("DEL", b.k.Due, b.k.Payload, b.k.Meta, b.k.Stream, b.k.Seen)
			if c.first != nil {
				b.enqueue(c.first...)
			}
			wantList(b, c.what, b.enqueue(c.then), c.want)
			b.want(c.what, c.left)

			// The same in one call, and with a repeat of that call.
			b.do("DEL", b.k.Due, b.k.Payload, b.k.Meta, b.k.Stream, b.k.Seen)
			all := append(c.first[:len(c.first):len(c.first)], c.then)
			token := Token{Name: c.what, Window: time.Minute}
			verdicts := b.enqueueAs(token, all...)
			redistest.Want(b, c.what+", in one call", verdicts[len(all)-1], c.want)
			b.want(c.what+", in one call", c.left)
			for i, again := range b.enqueueAs(token, all...) {
				if verdicts[i] == Duplicate != (again == Duplicate) || again != Duplicate && again != Repeated {
					b.Errorf("%s: message %d, at first %d, repeated %d", c.what, i, verdicts[i], again)
				}
			}
			b.want(c.what+", repeated", c.left)
		}
	})
}

// want compares the scheduled message with the ID m.
func (b *rig) want(what, left string) {
	b.Helper()
	got := ""
	if b.count("ZCARD", b.k.Due) > 0 {
		meta, _ := b.try("HGET", b.k.Meta, "m").ToString()
		payload, _ := b.try("HGET", b.k.Payload, "m").ToString()
		e, _ := DecodeMeta("m", meta)
		got = payload + " " + e.Headers["h"]
	}
	redistest.Want(b, what, got, left)
	if n := b.count("ZCARD", b.k.Due); b.count("HLEN", b.k.Payload) > n || b.count("HLEN", b.k.Meta) > n {
		b.Errorf("%s: orphans are left", what)
	}
}

// No value of dedup lets a message overwrite a retry, and an unknown value is refused.
func TestReplaceLeavesRetriesAlone(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		b.fail("g", e.EntryID, ActionRetry, "", "no")
		member := "m" + Separator + "g" + Separator + e.EntryID
		for _, how := range []Dedup{Fresh, Refuse, Replace, ReplaceLater, ReplaceEarlier} {
			item := Item{ID: member, When: After(time.Hour), Payload: []byte("x"), Dedup: how}
			wantList(b, "of "+string(how), b.enqueue(item), Duplicate)
		}
		redistest.Want(b, "payload", b.text("HGET", b.k.Payload, member), "payload of m")
		for _, how := range []Dedup{"always", "Replace", "later ", "-1"} {
			items := []Item{{ID: "x", When: After(0), Dedup: how}}
			if _, err := Enqueue(b.ctx, b.c, b.k, Token{}, items, Durability{}); err == nil {
				b.Errorf("%q passes", how)
			}
		}
		redistest.Want(b, "scheduled", fmt.Sprint(b.count("ZCARD", b.k.Due)), "1")
	})
}
