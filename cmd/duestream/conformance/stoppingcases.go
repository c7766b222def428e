package conformance

import (
	"time"
)

const stopWithin = 10 * time.Second // a worker must end within this time after SIGTERM

// stoppingCases: a worker gets SIGTERM.
var stoppingCases = []Case{
	{
		Name: "stop", Level: Good, Section: "8, step 9",
		Rule: "At SIGTERM a worker finishes and acknowledges what it has begun, and exits with 0 within 10 s; what it held and did not begin is not lost.",
		worker: func(t *workerTrial) {
			one := t.served("one")
			messages := several(12, "m", "slow 300")
			t.schedule(messages...)
			t.awaitAnyBegun(messages)
			t.stop(one)
			t.exited(one, stopWithin)
			begun := map[string]bool{}
			for _, m := range messages {
				begun[m.id] = len(t.begunOf(m.id)) > 0
			}
			t.worker("two")
			during("after a worker was stopped that held them", func() {
				t.done(0, ids(messages)...)
			})
			for _, m := range messages {
				if all := t.begunOf(m.id); begun[m.id] && len(all) > 1 {
					failf("message %q, which the stopped worker had begun, was begun again by worker %s with attempt %d: it was not acknowledged", m.id, all[1].by, all[1].Attempt)
				}
			}
		},
	},
	{
		Name: "stop-idle", Level: Good, Section: "8, steps 2 and 9",
		Rule: "A worker that waits for messages exits with 0 within 10 s of SIGTERM.",
		worker: func(t *workerTrial) {
			w := t.served("one")
			t.stop(w)
			t.exited(w, stopWithin)
		},
	},
}
