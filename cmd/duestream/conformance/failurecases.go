package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
)

// What fails, and what takes long.
var failureCases = []Case{
	{
		Name: "killed", Level: Minimal, Section: "8, steps 5 and 6",
		Rule: "What a worker held when it was killed comes to another worker, with attempt 2.",
		run: func(t *trial) error {
			one, err := t.served("one")
			if err != nil {
				return err
			}
			m := message{id: "victim", work: t.slow(0.6), payload: "body", headers: map[string]string{"kind": "order"}}
			if err := t.schedule(m); err != nil {
				return err
			}
			if _, err := t.awaitBegun(0, m.id, 1); err != nil {
				return err
			}
			one.kill()
			if _, err := t.worker("two"); err != nil {
				return err
			}
			again, err := t.awaitBegun(0, m.id, 2)
			if err != nil {
				return err
			}
			if again.Attempt != 2 || again.by != "two" {
				return failf("after SIGKILL of the worker that held it, message %q was begun by worker %s with attempt %d; wanted worker two, attempt 2", m.id, again.by, again.Attempt)
			}
			if err := asSent(again, m); err != nil {
				return err
			}
			return t.done(0, m.id)
		},
	},
	{
		Name: "fail", Level: Minimal, Section: "8, step 6, and 9",
		Rule: "A message that a worker fails comes back to it with the next attempt, as it was sent; the worker sees each attempt.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			m := message{id: "twice", work: "fail 2", payload: "body", headers: map[string]string{"kind": "order"}}
			if err := t.schedule(m, message{id: "beside"}); err != nil {
				return err
			}
			if err := t.awaitAttempts(m.id, 1, 2, 3); err != nil {
				return err
			}
			for _, b := range t.begunOf(m.id) {
				if err := asSent(b, m); err != nil {
					return err
				}
			}
			return t.done(0, m.id, "beside")
		},
	},
	{
		Name: "poison", Level: Minimal, Section: "9 and 10",
		Rule: "A message that always fails, or kills its worker, is given up after max_attempts; others go on.",
		run: func(t *trial) error {
			w, err := t.served("one")
			if err != nil {
				return err
			}
			if err := t.schedule(message{id: "deadly", work: "slow 60000", maxAttempts: 2}, message{id: "hopeless", work: "fail 1000", maxAttempts: 2}); err != nil {
				return err
			}
			for attempt := 1; attempt <= 2; attempt++ {
				b, err := t.awaitBegun(0, "deadly", attempt)
				if err != nil {
					return err
				}
				if b.Attempt != attempt {
					return failf("message %q was begun with attempt %d; wanted %d", b.ID, b.Attempt, attempt)
				}
				w.kill()
				if w, err = t.worker("after-" + strconv.Itoa(attempt)); err != nil {
					return err
				}
			}
			if err := t.marker("other"); err != nil {
				return err
			}
			for _, id := range []string{"deadly", "hopeless"} {
				letter, err := t.letter(id, 0)
				if err != nil {
					return err
				}
				if got := letter.Fields[lua.FieldAttempt]; got != "2" || letter.Fields[lua.FieldGroup] != t.group {
					return failf("the dead letter of %q has attempt %q and group %q; wanted 2 and %q", id, got, letter.Fields[lua.FieldGroup], t.group)
				}
			}
			return nil
		},
	},
	{
		Name: "extend", Level: Good, Section: "8, step 7",
		Rule: "A worker extends what takes long: work of three visibility timeouts is not given to anybody else.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			if err := t.schedule(message{id: "long", work: t.slow(3)}); err != nil {
				return err
			}
			return t.doneOnce("long")
		},
	},
	{
		Name: "extend-held", Level: Good, Section: "8, steps 2 and 7",
		Rule: "What waits in a worker's buffer is extended, too, or not read before it can be begun.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			messages := several(8, "m", t.slow(0.4))
			if err := t.schedule(messages...); err != nil {
				return err
			}
			return t.doneOnce(ids(messages)...)
		},
	},
	{
		Name: "for-another-group", Level: Good, Section: "8, step 3",
		Rule: "An entry with a field for that names another group is acknowledged and not worked on.",
		run: func(t *trial) error {
			other := "other"
			if err := firstError(t.register(), t.createGroup(other)); err != nil {
				return err
			}
			if _, err := t.served("one"); err != nil {
				return err
			}
			// A retry of another group as the bridge makes it: that group reads the message, and does nothing more.
			if err := t.schedule(message{id: "shared"}); err != nil {
				return err
			}
			if err := t.await(0, func() (string, error) {
				if _, err := t.readAs(other, false); err != nil {
					return "", err
				}
				entries, err := t.entries(t.keys(0).Stream)
				made := slices.ContainsFunc(entries, func(e entry) bool { return e.Fields[lua.FieldFor] == other && e.Fields[lua.FieldID] == "shared" })
				return missingIf(!made, "the bridge has not made a retry for another group"), err
			}); err != nil {
				return err
			}
			plain, err := t.add("id", "foreign", "payload", "body", "attempt", "2", "for", other)
			if err != nil {
				return err
			}
			if err := t.marker("after"); err != nil {
				return err
			}
			t.killAll()
			if n := len(t.begunOf("foreign")); n > 0 {
				return failf("the entry %s, which is for group %q, was begun by group %q", plain, other, t.group)
			}
			if got := attempts(t.begunOf("shared")); !slices.Equal(got, []int{1}) {
				return failf("message %q was begun with attempts %v by group %q; wanted attempt 1 only, the retry was for group %q", "shared", got, t.group, other)
			}
			return nil
		},
	},
	{
		Name: "entries-of-others", Level: Good, Section: "8 (MUST NOT)",
		Rule: "A worker takes no entries from other consumers of its group: not XAUTOCLAIM, not XCLAIM of what is not its own, not XGROUP DELCONSUMER.",
		run: func(t *trial) error {
			if err := firstError(t.unhurry(), t.register(), t.createGroup(t.group), t.schedule(message{id: "held"})); err != nil {
				return err
			}
			var mine []entry
			if err := t.await(0, func() (missing string, err error) {
				mine, err = t.readAs(t.group, false)
				return missingIf(len(mine) == 0, "the bridge has not made the message ready"), err
			}); err != nil {
				return err
			}
			w, err := t.worker("one")
			if err != nil {
				return err
			}
			for began, round := time.Now(), 0; round < 3 || time.Since(began) < 3*time.Second; round++ {
				id := fmt.Sprintf("beside-%d", round)
				if err := t.schedule(message{id: id, work: "slow 200"}); err != nil {
					return err
				}
				if _, err := t.awaitBegun(0, id, 1); err != nil {
					return err
				}
			}
			t.stop(w)
			_ = t.exited(w, stopWithin) // other cases look at how it stops
			w.kill()
			if n := len(t.begunOf("held")); n > 0 {
				return failf("the worker began message %q, which another consumer holds", "held")
			}
			held, err := t.pending(t.group, kit)
			if err == nil && !slices.Contains(held, mine[0].ID) {
				err = failf("entry %s, which another consumer held, is not pending with that any more", mine[0].ID)
			}
			return err
		},
	},
	{
		Name: "late-acknowledgement", Level: Good, Section: "8, step 5",
		Rule: "A worker that is told that its entry was lost, because it was reclaimed, goes on; the message is delivered again.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			id, err := t.takeAway()
			if err != nil {
				return err
			}
			again, err := t.awaitBegun(0, id, 2)
			if err != nil {
				return err
			}
			if again.Attempt != 2 {
				return failf("the message was begun again with attempt %d; wanted 2", again.Attempt)
			}
			if err := t.done(0, id); err != nil {
				return err
			}
			return t.marker("after")
		},
	},
}

// slow returns work that takes so many visibility timeouts.
func (t *trial) slow(timeouts float64) string {
	return fmt.Sprintf("slow %d", int64(timeouts*float64(t.cfg.Visibility.Milliseconds())))
}

// takeAway has a worker begin a message, and moves its entry as a bridge would, were the worker slow. It returns the message's ID.
func (t *trial) takeAway() (id string, err error) {
	for round := range 3 { // we may be late ourselves
		id = fmt.Sprintf("lost-%d", round+1)
		if err := t.schedule(message{id: id, work: t.slow(0.6)}); err != nil {
			return "", err
		}
		if _, err := t.awaitBegun(0, id, 1); err != nil {
			return "", err
		}
		held, err := t.pending(t.group, "")
		if err != nil {
			return "", err
		}
		var failures []lua.Failure
		for _, entry := range held {
			failures = append(failures, lua.Failure{Held: lua.Held{Entry: entry}, Action: lua.ActionRetry, Reason: lua.ReasonVisibilityTimeout, Error: "taken away"})
		}
		if len(failures) == 0 {
			continue
		}
		outcomes, err := lua.Retry(t.ctx, t.redis.Client, t.keys(0), t.group, t.cfg.policy().Attempts(), failures)
		if err != nil {
			return "", couldNot("retry", err)
		}
		if slices.Contains(outcomes, lua.Retried) {
			return id, nil
		}
	}
	return "", failf("entries are not pending while their messages are worked on")
}

// awaitAttempts waits until a message was begun with exactly these attempts, in this order.
func (t *trial) awaitAttempts(id string, want ...int) error {
	return t.await(0, func() (string, error) {
		got := attempts(t.begunOf(id))
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			return "", failf("message %q was begun with attempts %v; wanted %v", id, got, want)
		}
		return missingIf(len(got) < len(want), fmt.Sprintf("message %q was begun with attempts %v; wanted %v", id, got, want)), nil
	})
}

// doneOnce waits until messages are done, and fails as soon as one is begun a second time.
func (t *trial) doneOnce(ids ...string) error {
	err := t.await(0, func() (string, error) {
		// A bridge that was held up itself may be late to take it away.
		idle, err := t.pendingFor(t.cfg.Visibility)
		if err != nil {
			return "", err
		}
		if len(idle) > 0 {
			return "", failf("entry %s was pending for the visibility timeout of %s without being extended", idle[0], t.cfg.Visibility)
		}
		for _, id := range ids {
			all := t.begunOf(id)
			if len(all) == 0 {
				return fmt.Sprintf("message %q was not begun", id), nil
			}
			if len(all) > 1 {
				return "", failf("message %q was begun %s, with attempts %v, the second time after %s: its visibility timeout of %s ran out",
					id, times(len(all)), attempts(all), all[1].at.Sub(all[0].at).Round(time.Millisecond), t.cfg.Visibility)
			}
		}
		return t.unsettled(t.group)
	})
	if err != nil {
		return err
	}
	t.killAll()
	return t.once(ids...)
}

const kit = "kit" // the consumer that is ours

// readAs reads what a group of the kit's own has not been given yet, without waiting, and acknowledges it if asked to.
func (t *trial) readAs(group string, acknowledge bool) ([]entry, error) {
	reply, err := t.do("XREADGROUP GROUP "+group+" "+kit+" COUNT 100 STREAMS", t.keys(0).Stream, ">").AsXRead()
	if noReply(err) {
		return nil, nil
	}
	if err != nil {
		return nil, couldNot("XREADGROUP", err)
	}
	var all []entry
	for _, e := range reply[t.keys(0).Stream] {
		all = append(all, entry{e.ID, e.FieldValues})
		if acknowledge {
			if _, err := t.number("XACK", t.keys(0).Stream, group, e.ID); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}
