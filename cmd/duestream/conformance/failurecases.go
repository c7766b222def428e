package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/duestream/duestream/lua"
)

// failureCases: messages that fail, and messages that take long.
var failureCases = []Case{
	{
		Name: "killed", Level: Minimal, Section: "8, steps 5 and 6",
		Rule: "What a worker held when it was killed comes to another worker, with attempt 2.",
		worker: func(t *workerTrial) {
			one := t.served("one")
			m := message{id: "victim", work: t.slow(0.6), payload: "body", headers: map[string]string{"kind": "order"}}
			t.schedule(m)
			t.awaitBegun(0, m.id, 1)
			one.kill()
			t.worker("two")
			again := t.awaitBegun(0, m.id, 2)
			if again.Attempt != 2 || again.by != "two" {
				failf("after SIGKILL of the worker that held it, message %q was begun by worker %s with attempt %d; wanted worker two, attempt 2", m.id, again.by, again.Attempt)
			}
			asSent(again, m)
			t.done(0, m.id)
		},
	},
	{
		Name: "fail", Level: Minimal, Section: "8, step 6, and 9",
		Rule: "A message that a worker fails comes back to it with the next attempt, as it was sent; the worker sees each attempt.",
		worker: func(t *workerTrial) {
			t.served("one")
			m := message{id: "twice", work: "fail 2", payload: "body", headers: map[string]string{"kind": "order"}}
			t.schedule(m, message{id: "beside"})
			t.awaitAttempts(m.id, 1, 2, 3)
			for _, b := range t.begunOf(m.id) {
				asSent(b, m)
			}
			t.done(0, m.id, "beside")
		},
	},
	{
		Name: "extend", Level: Good, Section: "8, step 7",
		Rule: "A worker extends what takes long: work of three visibility timeouts is not given to anybody else.",
		worker: func(t *workerTrial) {
			t.served("one")
			t.schedule(message{id: "long", work: t.slow(3)})
			t.doneOnce("long")
		},
	},
	{
		Name: "extend-held", Level: Good, Section: "8, steps 2 and 7",
		Rule: "What waits in a worker's buffer is extended, too, or not read before it can be begun.",
		worker: func(t *workerTrial) {
			t.served("one")
			messages := several(8, "m", t.slow(0.4))
			t.schedule(messages...)
			t.doneOnce(ids(messages)...)
		},
	},
	{
		Name: "entries-of-others", Level: Good, Section: "8 (MUST NOT)",
		Rule: "A worker takes no entries from other consumers of its group: not XAUTOCLAIM, not XCLAIM of what is not its own, not XGROUP DELCONSUMER.",
		worker: func(t *workerTrial) {
			t.unhurry()
			t.register()
			t.createGroup(t.group)
			t.schedule(message{id: "held"})
			var mine []entry
			t.await(0, func() string {
				mine = t.readAs(t.group, false)
				return missingIf(len(mine) == 0, "the bridge has not made the message ready")
			})
			w := t.worker("one")
			for began, round := time.Now(), 0; round < 3 || time.Since(began) < 3*time.Second; round++ {
				id := fmt.Sprintf("beside-%d", round)
				t.schedule(message{id: id, work: "slow 200"})
				t.awaitBegun(0, id, 1)
			}
			t.stop(w)
			_ = attempt(func() { t.exited(w, stopWithin) }) // how a worker stops is judged by other cases
			w.kill()
			if n := len(t.begunOf("held")); n > 0 {
				failf("the worker began message %q, which another consumer holds", "held")
			}
			if !slices.Contains(t.pending(t.group, kit), mine[0].ID) {
				failf("entry %s, which another consumer held, is not pending with that any more", mine[0].ID)
			}
		},
	},
	{
		Name: "late-acknowledgement", Level: Good, Section: "8, step 5",
		Rule: "A worker that is told that its entry was lost, because it was reclaimed, goes on; the message is delivered again.",
		worker: func(t *workerTrial) {
			t.served("one")
			id := t.takeAway()
			again := t.awaitBegun(0, id, 2)
			if again.Attempt != 2 {
				failf("the message was begun again with attempt %d; wanted 2", again.Attempt)
			}
			t.done(0, id)
			t.marker("after")
		},
	},
}

// slow returns the header of work that lasts for a number of visibility timeouts.
func (t *workerTrial) slow(timeouts float64) string {
	return fmt.Sprintf("slow %d", int64(timeouts*float64(t.cfg.Visibility.Milliseconds())))
}

// takeAway lets a worker begin a message, and reclaims its entry as a bridge does from a slow worker. It returns the
// ID of the message.
func (t *workerTrial) takeAway() string {
	for round := range 3 { // a retry, because the message may be done before the kit reclaims it
		id := fmt.Sprintf("lost-%d", round+1)
		t.schedule(message{id: id, work: t.slow(0.6)})
		t.awaitBegun(0, id, 1)
		var failures []lua.Failure
		for _, entry := range t.pending(t.group, "") {
			failures = append(failures, lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionRetry,
				Reason: lua.ReasonVisibilityTimeout, Error: "taken away"})
		}
		if len(failures) == 0 {
			continue
		}
		outcomes, err := lua.Retry(t.ctx, t.redis.Client, t.keys(0), t.group, t.cfg.policy().Attempts(), failures)
		couldNot("retry", err)
		if slices.Contains(outcomes, lua.Retried) {
			return id
		}
	}
	failf("entries are not pending while their messages are worked on")
	return ""
}

// awaitAttempts waits until a message was begun with exactly the attempts want, in this order.
func (t *workerTrial) awaitAttempts(id string, want ...int) {
	t.await(0, func() string {
		got := attempts(t.begunOf(id))
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			failf("message %q was begun with attempts %v; wanted %v", id, got, want)
		}
		return missingIf(len(got) < len(want), fmt.Sprintf("message %q was begun with attempts %v; wanted %v", id, got, want))
	})
}

// doneOnce waits until messages are done, and fails as soon as one of them is begun a second time.
func (t *workerTrial) doneOnce(ids ...string) {
	t.await(0, func() string {
		// A late bridge leaves the entry with the worker, but the entry's idle time shows the missing extension.
		if idle := t.pendingFor(t.cfg.Visibility); len(idle) > 0 {
			failf("entry %s was pending for the visibility timeout of %s without being extended", idle[0], t.cfg.Visibility)
		}
		for _, id := range ids {
			all := t.begunOf(id)
			if len(all) == 0 {
				return fmt.Sprintf("message %q was not begun", id)
			}
			if len(all) > 1 {
				failf("message %q was begun %s, with attempts %v, the second time after %s: its visibility timeout of %s ran out",
					id, times(len(all)), attempts(all), all[1].at.Sub(all[0].at).Round(time.Millisecond), t.cfg.Visibility)
			}
		}
		return t.unsettled(t.group)
	})
	t.killAll()
	t.once(ids...)
}

const kit = "kit" // consumer name of the kit
