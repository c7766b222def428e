package lua

import (
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// endByXACKDEL acknowledges an entry by XACKDEL with ACKED, as a plain worker may do. It returns the server's answer.
func (b *testQueue) endByXACKDEL(group, entry string) (answer int64) {
	b.Helper()
	answers, err := b.try("XACKDEL", b.k.Stream, group, "ACKED", "IDS", "1", entry).ToArray()
	if err != nil {
		b.Fatal(err)
	}
	answer, err = answers[0].AsInt64()
	if err != nil {
		b.Fatal(err)
	}
	return answer
}

// A plain worker of one group ends its deliveries by XACKDEL with ACKED. Workers of another group, and bridges, use the
// scripts. Each group gets each message, nothing is left, and each key is passed on when a bridge looks.
func TestAPlainWorkerMayUseXACKDEL(t *testing.T) {
	t.Parallel()
	b, ok := onServerWithXDELEX(t) // it has XACKDEL, too
	if !ok {
		return
	}
	pass := func(b *testQueue) {
		if _, err := PassTurns(b.ctx, b.c, b.k, TurnsPassed{}, 10); err != nil {
			b.Fatal(err)
		}
	}
	for name, f := range map[string]func(b *testQueue){
		"the other group retries": func(b *testQueue) {
			e := b.deliver([]string{"g", "h"}, "m")[0].EntryID
			redistest.Want(b, "answer", b.endByXACKDEL("g", e), 2)
			redistest.Want(b, "outcome", b.fail("h", e, ActionRetry, ReasonMaxAttempts, "no"), Retried)
			b.wantState("due=1 payload=1 meta=1 stream=0 dead=0 g=0 h=0", "g", "h")
			b.makeDue()
			b.drain(10)
			e = b.read("h", "c1", 1)[0].EntryID
			redistest.Want(b, "answer for an unread entry", b.endByXACKDEL("h", e), 2)
			b.read("g", "c1", 1)
			redistest.Want(b, "answer of the last group", b.endByXACKDEL("g", e), 1)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0 h=0", "g", "h")
		},
		"the other group was first": func(b *testQueue) {
			e := b.deliver([]string{"g", "h"}, "m")[0].EntryID
			redistest.Want(b, "acknowledged", b.ack("h", Held{Entry: e})[0], true)
			redistest.Want(b, "answer", b.endByXACKDEL("g", e), 1)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0 h=0", "g", "h")
		},
		"the entry was reclaimed": func(b *testQueue) {
			e := b.deliver([]string{"g"}, "m")[0].EntryID
			b.abandon("g", "c1", e)
			redistest.Want(b, "reclaimed", b.reclaim("g", time.Minute), Reclaimed{Retried: 1})
			redistest.Want(b, "answer", b.endByXACKDEL("g", e), -1)
			b.wantState("due=1 payload=1 meta=1 stream=0 dead=0 g=0", "g")
		},
		"the message was cancelled": func(b *testQueue) {
			e := b.deliver([]string{"g"}, "m")[0].EntryID
			wantList(b, "cancelled", b.cancelRunning("", "m"), "m g 2 c1")
			redistest.Want(b, "answer", b.endByXACKDEL("g", e), 1)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		},
		"another group is created later": func(b *testQueue) {
			e := b.deliver([]string{"g"}, "m")[0].EntryID
			b.groups("late")
			redistest.Want(b, "answer", b.endByXACKDEL("g", e), 2)
			wantList(b, "read by the later group", ids(b.read("late", "c1", 1)), "m")
			redistest.Want(b, "answer of the later group", b.endByXACKDEL("late", e), 1)
		},
		"with a key and progress": func(b *testQueue) {
			b.groups("g")
			b.enqueue(b.keyed("m", "k", 9), b.keyed("next", "k", 5))
			b.drain(10)
			e := b.read("g", "c1", 1)[0]
			redistest.Want(b, "saved", b.saveProgress("g", e, "half"), StillHeld)
			redistest.Want(b, "answer", b.endByXACKDEL("g", e.EntryID), 1)
			b.drain(10)
			wantList(b, "before a bridge looked at the keys", ids(b.read("g", "c1", 10)))
			pass(b)
			b.drain(10)
			wantList(b, "the next one of the key", ids(b.read("g", "c1", 10)), "next")
			b.trim("", 100, 1<<20)
			redistest.Want(b, "progress", b.count("EXISTS", b.k.Progress), 0)
		},
		"a redriven letter": func(b *testQueue) {
			letter := b.bury("g", "m", "")
			b.redrive(Redrive{Letter: letter.EntryID, When: After(0)})
			b.drain(10)
			redistest.Want(b, "answer", b.endByXACKDEL("g", b.read("g", "c1", 1)[0].EntryID), 1)
			b.wantState("due=0 payload=0 meta=0 stream=0 dead=0 g=0", "g")
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := *b
			q.T = t
			f(q.queue("xackdel-" + redistest.Queue(t)))
		})
	}
}
