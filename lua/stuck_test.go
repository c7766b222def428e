package lua

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// While the dead-letter stream refuses, an abandoned entry in its last attempt is claimed again and again, and stays
// pending. Before, each of these claims counted as a delivery: when the dead letter could be written at last, it
// showed too many attempts.
func TestReclaimCountsNoDeliveryWhileDeadLettersAreRefused(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.do("XADD", b.k.Stream, "*", "id", "m", "attempt", "3", "due_ms", "5", "for", "g")
		b.read("g", "c1", 1)
		b.fillStream(b.k.Dead)
		for range 3 {
			redistest.Want(b, "reclaimed", b.reclaim("g", 0), Reclaimed{Stuck: 1})
			b.wantState("due=0 payload=0 meta=0 stream=1 dead=1 g=1", "g")
		}
		b.do("DEL", b.k.Dead)
		redistest.Want(b, "healed", b.reclaim("g", 0), Reclaimed{Dead: 1})
		redistest.Want(b, "attempt", b.letters()[0].Attempt, 3)
		b.wantState("due=0 payload=0 meta=0 stream=0 dead=1 g=0", "g")
	})
}
