package lua

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// Foreign or damaged entries: once the exit acknowledged an entry, failed to compute its retry, and the message was
// gone (PITFALLS A4). Each must end as one retry or one dead letter with its whole content.
func TestRetryKeepsDamagedEntries(t *testing.T) {
	many := []string{"id", "m", "payload", "p"}
	for i := range 1500 {
		many = append(many, fmt.Sprint("f", i), fmt.Sprint("v", i))
	}
	cases := []struct {
		name   string
		fields []string
		want   Outcome
		check  func(b *rig, e Entry) // of the dead letter, or of the next delivery
	}{
		{"attempt is text", []string{"id", "m", "payload", "p", "attempt", "abc"}, Dead, func(b *rig, e Entry) {
			redistest.Want(b, "raw attempt", rawField(b.raw(b.k.Dead)[0].FieldValues, "attempt"), "abc")
		}},
		{"attempt is zero", []string{"id", "m", "payload", "p", "attempt", "0"}, Dead, nil},
		{"attempt is huge", []string{"id", "m", "payload", "p", "attempt", "9999999999999999"}, Dead, nil},
		{"max_attempts is text", []string{"id", "m", "payload", "p", "max_attempts", "x"}, Dead, nil},
		{"expires_ms is text", []string{"id", "m", "payload", "p", "expires_ms", "x"}, Retried, nil},
		{"id is missing", []string{"payload", "p", "color", "red"}, Retried, func(b *rig, e Entry) {
			redistest.Want(b, "attempt", e.Attempt, 2)
			redistest.Want(b, "color", e.Extra["color"], "red")
			if !strings.Contains(e.ID, "-") {
				b.Errorf("id %q is not that of the first entry", e.ID)
			}
		}},
		{"id is empty", []string{"id", "", "payload", "p"}, Dead, nil},
		{"id holds the separator", []string{"id", "a" + Separator + "b", "payload", "p"}, Dead,
			func(b *rig, e Entry) { redistest.Want(b, "id", e.ID, "a"+Separator+"b") }},
		{"id is not UTF-8", []string{"id", "\xff", "payload", "p"}, Dead,
			func(b *rig, e Entry) { redistest.Want(b, "id", e.ID, "\xff") }},
		{"nothing but a foreign field", []string{"", ""}, Retried, nil},
		{"1,500 fields", many, Dead, func(b *rig, e Entry) {
			redistest.Want(b, "id", e.ID, "m")
			redistest.Want(b, "raw fields", strings.Count(e.Extra[FieldRaw], "\n"), 2*1502-1)
		}},
		{"binary header", []string{"id", "m", "payload", "p", "h:bin", "\xff\x00\x80a"}, Retried, func(b *rig, e Entry) {
			redistest.Want(b, "header as base64", e.Extra["b64:h:bin"],
				base64.StdEncoding.EncodeToString([]byte("\xff\x00\x80a")))
			redistest.Want(b, "payload", string(e.Payload), "p")
		}},
		{"60 KiB of a binary header", []string{"id", "m", "payload", "p", "h:bin", strings.Repeat("\xff", 60<<10)}, Retried,
			func(b *rig, e Entry) {
				redistest.Want(b, "header as base64", e.Extra["b64:h:bin"],
					base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\xff", 60<<10))))
			}},
		{"990 fields", many[:2*990], Retried, func(b *rig, e Entry) { redistest.Want(b, "fields", len(e.Extra), 988) }},
		{"1,000 fields", many[:2*1000], Retried, nil},
		{"binary field name", []string{"id", "m", "payload", "p", "\xff", "x"}, Dead,
			func(b *rig, e Entry) { redistest.Want(b, "field", e.Extra["\xff"], "x") }},
		{"100 KiB header", []string{"id", "m", "payload", "p", "h:big", strings.Repeat("x", 100<<10)}, Dead,
			func(b *rig, e Entry) {
				redistest.Want(b, "header", len(e.Headers["big"]), 100<<10)
				redistest.Want(b, "payload", string(e.Payload), "p")
			}},
		{"headers of 1 MiB together", append([]string{"id", "m", "payload", "p"}, wide(20, 60<<10)...), Retried, nil},
		{"no payload", []string{"id", "m"}, Retried, func(b *rig, e Entry) {
			redistest.Want(b, "payload", string(e.Payload),
				"")
		}},
		{"for is empty", []string{"id", "m", "payload", "p", "for", ""}, Retried,
			func(b *rig, e Entry) { redistest.Want(b, "for", e.For, "g") }},
		{"control characters", []string{"id", "m", "payload", "p", "h:c", "\x00\x01\n\"\\/\x7f"}, Retried, func(b *rig, e Entry) {
			redistest.Want(b, "header", e.Headers["c"], "\x00\x01\n\"\\/\x7f")
		}},
		{"field of ours", []string{"id", "m", "payload", "p", "reason", "mine", "group", "mine", "dead_ms", "x"}, Retried, nil},
	}
	everywhere(t, func(b *rig) {
		for i, c := range cases {
			b := b.queue(fmt.Sprint("q", i))
			b.groups("g")
			b.do(append([]string{"XADD", b.k.Stream, "*"}, c.fields...)...)
			b.do("XADD", b.k.Stream, "*", "id", "behind", "payload", "q")
			es := b.read("g", "c", 2)
			redistest.Want(b, c.name, b.fail("g", es[0].EntryID, ActionRetry, ReasonMaxAttempts, "boom"), c.want)
			redistest.Want(b, c.name+": the next one", b.fail("g", es[1].EntryID, ActionRetry, ReasonMaxAttempts, "boom"),
				Retried)
			redistest.Want(b, c.name+": pending", b.pending("g"), 0)
			b.makeDue()
			b.drain(10)
			b.drain(10) // a drain stops after its bytes
			got := b.entries(b.k.Dead)
			if c.want == Retried && len(got) == 0 {
				got = slices.DeleteFunc(b.entries(b.k.Stream), func(e Entry) bool { return e.ID == "behind" })
				redistest.Want(b, c.name+": retries", len(got), 1)
			} else {
				redistest.Want(b, c.name+": dead letters", len(got), 1)
				redistest.Want(b, c.name+": reason", got[0].Reason, ReasonMalformed)
				redistest.Want(b, c.name+": payload of the letter", string(got[0].Payload),
					map[bool]string{true: "p"}[len(c.fields) < 3000])
			}
			if c.check != nil {
				c.check(b, got[0])
			}
			dead := b.count("XLEN", b.k.Dead)
			b.wantState(fmt.Sprintf("due=0 payload=0 meta=0 stream=%d dead=%d", 2-dead, dead))
		}
	})
}

func rawField(fields []FieldValue, name string) string {
	for _, f := range fields {
		if f.Field == name {
			return f.Value
		}
	}
	return "(absent)"
}

func wide(n, size int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint("h:", i), strings.Repeat("x", size))
	}
	return out
}

func TestRetryReportsALostBody(t *testing.T) {
	everywhere(t, func(b *rig) {
		if b.inProcess() {
			return // there, deleting an entry removes it from the pending lists
		}
		es := b.deliver([]string{"g"}, "m1", "m2", "m3", "m4")
		b.do("XTRIM", b.k.Stream, "MAXLEN", "0")
		for i, action := range []Action{ActionRetry, ActionDead, ActionRelease} {
			out := b.retry("g", policy, Failure{Held: Held{Entry: es[i].EntryID, ID: es[i].ID}, Action: action,
				Delay: -1, Reason: "why"})
			redistest.Want(b, string(action), out, Dead)
			d := b.entries(b.k.Dead)[i]
			redistest.Want(b, "letter", [...]string{d.ID, d.Reason, d.Group, d.Entry}, [...]string{es[i].ID, ReasonBodyLost, "g",
				es[i].EntryID})
			redistest.Want(b, "again", b.fail("g", es[i].EntryID, action, "", ""), Lost)
		}
		redistest.Want(b, "without its ID", b.fail("g", es[3].EntryID, ActionRetry, "", ""), Dead)
		redistest.Want(b, "id", b.entries(b.k.Dead)[3].ID, es[3].EntryID)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=4 g=0", "g")
	})
}

// A dead-letter stream that refuses everything must leave the entry pending: nothing is dropped.
func TestDeadStreamThatRefusesLeavesEntriesPending(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.fillStream(b.k.Dead)
		es := b.deliver([]string{"g"}, "m1", "m2")
		for range 2 {
			redistest.Want(b, "outcome", b.fail("g", es[0].EntryID, ActionDead, "", ""), Stuck)
			b.wantState("due=0 payload=0 meta=0 stream=2 dead=1 g=2", "g")
		}
		redistest.Want(b, "another exit goes on", b.fail("g", es[1].EntryID, ActionRetry, "", ""), Retried)
		once := Attempts{Max: 1, Delays: policy.Delays}
		r, err := Reclaim(b.ctx, b.c, b.k, ReclaimArgs{Group: "g", Attempts: once, Limit: 10, MaxBytes: 1000})
		if err != nil {
			b.Fatal(err)
		}
		redistest.Want(b, "reclaimed", r, Reclaimed{Stuck: 1})
		b.wantState("due=1 payload=1 meta=1 stream=1 dead=1 g=1", "g")
		b.do("DEL", b.k.Dead)
		redistest.Want(b, "healed", b.fail("g", es[0].EntryID, ActionDead, "why", ""), Dead)
		b.wantState("due=1 payload=1 meta=1 stream=0 dead=1 g=0", "g")
	})
}
