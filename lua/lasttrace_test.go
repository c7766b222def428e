package lua

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

const (
	traceOne = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceTwo = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// fails lets a message fail, with the trace of its attempt, and returns its next delivery.
func (b *rig) fails(e Entry, action Action, trace string, want Outcome) Entry {
	b.Helper()
	redistest.Want(b, "outcome", b.retry("g", policy, Failure{Held: Held{Entry: e.EntryID, ID: e.ID}, Action: action, Error: "no",
		Trace: trace}), want)
	if want == Dead {
		letters := b.entries(b.k.Dead)
		return letters[len(letters)-1]
	}
	b.makeDue()
	b.drain(1)
	return b.read("g", "c", 1)[0]
}

// The trace of an attempt stays with the message, through each exit, until another attempt gives its own. An attempt
// that was abandoned, or not traced, keeps the earlier trace.
func TestLastTraceGoesWithTheMessage(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		redistest.Want(b, "of the first", e.Extra[FieldLastTrace], "")
		e = b.fails(e, ActionRetry, traceOne, Retried)
		redistest.Want(b, "retried", e.Extra[FieldLastTrace]+" "+fmt.Sprint(e.Attempt, e.Error), traceOne+" 2no")
		e = b.fails(e, "", "", Retried)
		redistest.Want(b, "not traced", e.Extra[FieldLastTrace], traceOne)
		e = b.fails(e, ActionRelease, traceTwo, Released)
		redistest.Want(b, "released", e.Extra[FieldLastTrace]+" "+fmt.Sprint(e.Attempt), traceTwo+" 3")
		redistest.Want(b, "reclaimed", b.reclaim("g", 0).Dead, 1)
		letter := b.entries(b.k.Dead)[0]
		redistest.Want(b, "dead", letter.Extra[FieldLastTrace]+" "+letter.Reason, traceTwo+" "+ReasonVisibilityTimeout)

		if out, err := RedriveDead(b.ctx, b.c, b.k, []Redrive{{Letter: letter.EntryID, When: After(0)}}); err != nil ||
			out[0] != RedriveScheduled {
			b.Fatal(out, err)
		}
		b.drain(1)
		e = b.read("g", "c", 1)[0]
		redistest.Want(b, "redriven", e.Extra[FieldLastTrace]+" "+fmt.Sprint(e.Attempt), traceTwo+" 1")
		redistest.Want(b, "given up", b.fails(e, ActionDead, traceOne, Dead).Extra[FieldLastTrace], traceOne)
	})
}

// An invalid traceparent is dropped before the call, and a message whose fields leave no room for one goes on without
// it.
func TestLastTraceNeverMakesAMessageFail(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		for _, bad := range []string{"x", traceOne + "0", traceOne[:54], strings.ToUpper(traceOne), "\xff", traceOne + "\n"} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p")
			e := b.fails(b.read("g", "c", 1)[0], ActionRetry, bad, Retried)
			redistest.Want(b, fmt.Sprintf("%q", bad), e.Extra[FieldLastTrace], "")
			b.ack("g", Held{Entry: e.EntryID})
		}
		most := []string{"XADD", b.k.Stream, "*", "id", "m"} // with for, error, and the fields of every entry: as many as allowed
		for i := range 994 {
			most = append(most, fmt.Sprint("f", i), "")
		}
		b.do(most...)
		e := b.fails(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "of an entry with many fields", e.Extra[FieldLastTrace]+" "+fmt.Sprint(len(e.Extra)), " 994")
		b.ack("g", Held{Entry: e.EntryID})

		large := []string{"XADD", b.k.Stream, "*", "id", "m", "payload", strings.Repeat("p", 600<<10)}
		for i := range 8 {
			large = append(large, fmt.Sprint("f", i), strings.Repeat("x", 64<<10))
		}
		b.do(large[:7+2*3]...)
		e = b.fails(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "of an entry with a large payload", e.Extra[FieldLastTrace], traceOne)
		b.ack("g", Held{Entry: e.EntryID})
		b.do(large[:7+2*7]...)
		e = b.fails(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "of an entry with large fields", e.Extra[FieldLastTrace], "")
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}

// An invalid action, with a trace or without, is refused before anything is written.
func TestActionsThatDoNotParseAreRefused(t *testing.T) {
	everywhere(t, func(b *rig) {
		e := b.deliver([]string{"g"}, "m")[0]
		for _, action := range []string{"retry ", "retry  " + traceOne, "bury " + traceOne, "retry " + traceOne[:54],
			"retry " + traceOne + " ", "retry 00-0af7-b7ad-01", "retry " + traceOne + "-00", "retry 00-" + strings.Repeat("-", 52), " ", traceOne, "retry\n" + traceOne} {
			err := b.c.Do(b.ctx, b.c.B().Arbitrary("EVAL", Source("retry"), "6").Keys(b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta,
				b.k.Dead, b.k.Wake).Args("g", "3", "0", e.EntryID, "", action, "", "", "no").Build()).Error()
			if err == nil || !strings.Contains(err.Error(), "action is none of") {
				b.Errorf("%q: %v", action, err)
			}
		}
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}
