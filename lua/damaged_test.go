package lua

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A foreign entry with many or long fields must end as one retry or one dead letter with its whole content. Before, the
// exit acknowledged such an entry, failed to compute its retry, and lost the message. Entries with other faults are
// tested by integration/model.
func TestRetryKeepsDamagedEntries(t *testing.T) {
	many := []string{"id", "m", "payload", "p"}
	for i := range 1500 {
		many = append(many, fmt.Sprint("f", i), fmt.Sprint("v", i))
	}
	cases := []struct {
		name   string
		fields []string
		want   Outcome
		check  func(b *testQueue, e Entry) // of the dead letter, or of the next delivery
	}{
		{"1,500 fields", many, Dead, func(b *testQueue, e Entry) {
			redistest.Want(b, "id", e.ID, "m")
			// 1,502 names and values, each but the last followed by a newline
			redistest.Want(b, "raw fields", strings.Count(e.Extra[FieldRaw], "\n"), 2*1502-1)
		}},
		{"60 KiB of a binary header", []string{"id", "m", "payload", "p", "h:bin", strings.Repeat("\xff", 60<<10)}, Retried,
			func(b *testQueue, e Entry) {
				redistest.Want(b, "header as base64", e.Extra["b64:h:bin"],
					base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\xff", 60<<10))))
			}},
		{"990 fields", many[:2*990], Retried,
			func(b *testQueue, e Entry) { redistest.Want(b, "fields without id and payload", len(e.Extra), 988) }},
		{"1,000 fields", many[:2*1000], Retried, nil},
		{"100 KiB header", []string{"id", "m", "payload", "p", "h:big", strings.Repeat("x", 100<<10)}, Dead,
			func(b *testQueue, e Entry) {
				redistest.Want(b, "header", len(e.Headers["big"]), 100<<10)
				redistest.Want(b, "payload", string(e.Payload), "p")
			}},
		{"headers of 1 MiB together", append([]string{"id", "m", "payload", "p"}, wide(20, 60<<10)...), Retried, nil},
	}
	everywhere(t, func(b *testQueue) {
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
			var got Entry
			if letters := b.letters(); c.want == Retried && len(letters) == 0 {
				retries := slices.DeleteFunc(b.entries(b.k.Stream), func(e Entry) bool { return e.ID == "behind" })
				redistest.Want(b, c.name+": retries", len(retries), 1)
				got = retries[0]
			} else {
				redistest.Want(b, c.name+": dead letters", len(letters), 1)
				redistest.Want(b, c.name+": reason", letters[0].Reason, ReasonMalformed)
				// The letter of an entry with too many fields has the payload in the field raw.
				redistest.Want(b, c.name+": payload of the letter", string(letters[0].Payload),
					map[bool]string{true: "p"}[len(c.fields) < 3000])
				got = letters[0].Entry
			}
			if c.check != nil {
				c.check(b, got)
			}
			dead := b.count("XLEN", b.k.Dead)
			b.wantState(fmt.Sprintf("due=0 payload=0 meta=0 stream=%d dead=%d", 2-dead, dead))
		}
	})
}

// rawField returns the value of a field; "(absent)" if there is none.
func rawField(fields []FieldValue, name string) string {
	for _, f := range fields {
		if f.Field == name {
			return f.Value
		}
	}
	return "(absent)"
}

// wide returns the names and values of n headers with values of size bytes.
func wide(n, size int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint("h:", i), strings.Repeat("x", size))
	}
	return out
}

// While the dead-letter stream refuses every letter, an entry that must become a dead letter has to stay pending, so
// that its message is not lost.
func TestDeadStreamThatRefusesLeavesEntriesPending(t *testing.T) {
	everywhere(t, func(b *testQueue) {
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
