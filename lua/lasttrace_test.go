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

// failWithTrace settles a delivery as failed, with the trace of its attempt. It returns the message's next delivery, or
// its dead letter if that is the wanted outcome.
func (b *testQueue) failWithTrace(e Entry, action Action, trace string, want Outcome) Entry {
	b.Helper()
	redistest.Want(b, "outcome", b.retry("g", policy, Failure{Held: Held{Entry: e.EntryID, ID: e.ID},
		Action: action, Error: "no",
		Trace: trace}), want)
	if want == Dead {
		letters := b.letters()
		return letters[len(letters)-1].Entry
	}
	b.makeDue()
	b.drain(1)
	return b.read("g", "c", 1)[0]
}

// An invalid traceparent is dropped before the call, and a message whose fields leave no room for one goes on without
// it.
func TestLastTraceNeverMakesAMessageFail(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		for _, bad := range []string{"x", traceOne + "0", traceOne[:54], strings.ToUpper(traceOne), "\xff", traceOne + "\n"} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", "p")
			e := b.failWithTrace(b.read("g", "c", 1)[0], ActionRetry, bad, Retried)
			redistest.Want(b, fmt.Sprintf("%q", bad), e.Extra[FieldLastTrace], "")
			b.ack("g", Held{Entry: e.EntryID})
		}
		const most = 994 // other fields that an entry may have beside id, payload, attempt, due_ms, for and error
		many := []string{"XADD", b.k.Stream, "*", "id", "m"}
		for i := range most {
			many = append(many, fmt.Sprint("f", i), "")
		}
		b.do(many...)
		e := b.failWithTrace(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "trace of an entry with many fields", e.Extra[FieldLastTrace], "")
		redistest.Want(b, "its other fields", len(e.Extra), most)
		b.ack("g", Held{Entry: e.EntryID})

		// A retry keeps a trace if the fields beside the payload have at most 256 KiB: three fields of 64 KiB fit, and
		// seven do not.
		large := []string{"XADD", b.k.Stream, "*", "id", "m", "payload", strings.Repeat("p", 600<<10)}
		head := len(large)
		for i := range 8 {
			large = append(large, fmt.Sprint("f", i), strings.Repeat("x", 64<<10))
		}
		b.do(large[:head+2*3]...)
		e = b.failWithTrace(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "trace of an entry with a large payload", e.Extra[FieldLastTrace], traceOne)
		b.ack("g", Held{Entry: e.EntryID})
		b.do(large[:head+2*7]...)
		e = b.failWithTrace(b.read("g", "c", 1)[0], ActionRetry, traceOne, Retried)
		redistest.Want(b, "trace of an entry with large fields", e.Extra[FieldLastTrace], "")
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}

// An invalid action, with a trace or without, is refused before anything is written.
func TestActionsThatDoNotParseAreRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		e := b.deliver([]string{"g"}, "m")[0]
		for _, action := range []string{"retry ", "retry  " + traceOne, "bury " + traceOne, "retry " + traceOne[:54],
			"retry " + traceOne + " ", "retry 00-0af7-b7ad-01", "retry " + traceOne + "-00",
			"retry 00-" + strings.Repeat("-", 52), " ", traceOne, "bury\n" + traceOne, "retry \n"} {
			err := b.c.Do(b.ctx, b.c.B().Arbitrary("EVAL", Source("retry"), "6").Keys(b.k.Stream, b.k.Due, b.k.Payload, b.k.Meta,
				b.k.Dead, b.k.Wake).Args("g", "3", "0", e.EntryID, "", action, "", "", "no").Build()).Error()
			if err == nil || !strings.Contains(err.Error(), "action is none of") {
				b.Errorf("%q: %v", action, err)
			}
		}
		b.wantState("due=0 payload=0 meta=0 stream=1 dead=0 g=1", "g")
	})
}
