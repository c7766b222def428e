package lua

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A call of a search must end soon, also if it takes long to look at a message. 128 KiB of one character, searched for
// a text that begins with 255 of them, take about a millisecond. So a call must not look at many of these payloads.
func TestACallOfASearchEndsAfterFewSlowMessages(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newTestQueue(t, s)
		payload := strings.Repeat("a", 128<<10)
		f := SearchFilter{Text: strings.Repeat("a", 255) + "b"}
		const n, most = 24, 4
		for i := range n {
			member := fmt.Sprint("m-", i)
			b.do("ZADD", b.k.Due, "4000000000000", member)
			b.do("HSET", b.k.Payload, member, payload)
			b.do("XADD", b.k.Dead, "*", "id", member, "payload", payload)
		}
		looked := 0
		f.States = []string{SearchScheduled}
		for step := (DueSearch{Limit: 1000}); !step.Done; {
			next, _, err := SearchDue(b.ctx, b.c, b.k, f, step)
			if err != nil || next.Looked > most {
				t.Fatalf("%v; a call looked at %d members", err, next.Looked)
			}
			step, looked = next, looked+next.Looked
		}
		redistest.Want(t, "members looked at", looked, n)
		looked = 0
		f.States = []string{SearchDead}
		for step := (StreamSearch{Limit: 1000}); !step.Done; {
			next, _, err := SearchEntries(b.ctx, b.c, b.k.Dead, f, step)
			if err != nil || next.Looked > most {
				t.Fatalf("%v; a call looked at %d letters", err, next.Looked)
			}
			step, looked = next, looked+next.Looked
		}
		redistest.Want(t, "letters looked at", looked, n)
	})
}
