package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What every worker does: it reads, works and acknowledges.
var basicCases = []Case{
	{
		Name: "deliver", Level: Minimal, Section: "8, steps 2 and 5",
		Rule: "A worker reads what becomes ready, before and after it starts, works on it once, and acknowledges it.",
		run: func(t *trial) error {
			before := several(5, "before", "ok")
			for i := range before {
				before[i].payload = "payload of " + before[i].id
			}
			after := several(5, "after", "")
			for i := range after {
				after[i].in, after[i].headers = time.Duration(i)*50*time.Millisecond, map[string]string{"kind": "order", "n": fmt.Sprint(i)}
			}
			all := append(slices.Clone(before), after...)
			if err := firstError(t.register(), t.createGroup(t.group), t.schedule(before...)); err != nil {
				return err
			}
			if _, err := t.worker("one"); err != nil {
				return err
			}
			if err := t.done(0, ids(before)...); err != nil {
				return err
			}
			if err := t.schedule(after...); err != nil {
				return err
			}
			if err := t.done(0, ids(all)...); err != nil {
				return err
			}
			t.killAll()
			for _, m := range all {
				if err := asSent(t.begunOf(m.id)[0], m); err != nil {
					return err
				}
			}
			return t.once(ids(all)...)
		},
	},
	{
		Name: "first-start", Level: Minimal, Section: "8, step 1",
		Rule: "A worker creates its group at 0, so that it also gets what became ready before the group existed.",
		run: func(t *trial) error {
			if err := firstError(t.register(), t.schedule(message{id: "early"})); err != nil {
				return err
			}
			if err := t.await(0, func() (string, error) {
				n, err := t.number("XLEN", t.keys(0).Stream)
				return missingIf(n == 0, "the bridge has not made the message ready"), err
			}); err != nil {
				return err
			}
			if _, err := t.worker("one"); err != nil {
				return err
			}
			return t.done(0, "early")
		},
	},
	{
		Name: "payload", Level: Minimal, Section: "5",
		Rule: "A payload is bytes, any of them, none, or 1 MiB; a worker gets them as they were sent.",
		run: func(t *trial) error {
			binary := make([]byte, 256)
			for i := range binary {
				binary[i] = byte(i)
			}
			messages := []message{
				{id: "binary", payload: string(binary)},
				{id: "lines", payload: "\r\n\x00\n\n\r end \x00\r\n"},
				{id: "broken-utf8", payload: "é\xff\xfe\xc3"},
				{id: "empty"},
				{id: "large", payload: strings.Repeat(string(binary), 1<<12)},
			}
			return t.passesAsSent(messages)
		},
	},
	{
		Name: "headers", Level: Minimal, Section: "5",
		Rule: "Header names and values and message IDs are UTF-8; a worker gets them as they were sent.",
		run: func(t *trial) error {
			return t.passesAsSent([]message{
				{id: "none"},
				{id: "plain", headers: map[string]string{"trace": "7f3a", "empty": ""}},
				{id: `ünïcode "quoted" \ 'id' → 🚚 %s {x}`, headers: map[string]string{
					"größe": "größer als ∞ 🚚", "with space": "a b", `with "quotes"`: `"'\`, "h:colon": "h:", "line": "one\ntwo\r\n\ttab", "$HOME": "`id`",
				}},
			})
		},
	},
	{
		Name: "names", Level: Minimal, Section: "13",
		Rule: "Queue, group and consumer may have any name within the limits; a worker uses those that it is given.",
		run: func(t *trial) error {
			t.queue, t.group = "A.b_c:d-"+t.queue, `équipe "1" à 100 %`
			if err := t.register(); err != nil {
				return err
			}
			if _, err := t.worker("nº 1/a:b"); err != nil {
				return err
			}
			if err := t.marker("named"); err != nil {
				return err
			}
			found, err := t.consumers()
			if err == nil && !slices.Contains(found, "nº 1/a:b") {
				err = failf("the group has consumers %q, but not the one that CONSUMER names", found)
			}
			return err
		},
	},
	{
		Name: "ack-after-work", Level: Minimal, Section: "8, step 5",
		Rule: "A worker acknowledges a message when its work is done, not before: until then the entry is pending.",
		run: func(t *trial) error {
			if err := t.policy("visibility_ms", "20000"); err != nil {
				return err
			}
			if _, err := t.served("one"); err != nil {
				return err
			}
			const work, watched = 4 * time.Second, 800 * time.Millisecond
			if err := t.schedule(message{id: "slow", work: "slow 4000"}); err != nil {
				return err
			}
			b, err := t.awaitBegun(0, "slow", 1)
			if err != nil {
				return err
			}
			for time.Since(b.at) < watched {
				held, err := t.pending(t.group, "")
				if err != nil {
					return err
				}
				if after := time.Since(b.at); len(held) == 0 && after < work {
					return failf("%d ms after it began work of %s the entry is not pending any more", after.Milliseconds(), work)
				}
				if err := firstError(t.pause(lookFirst), t.trouble()); err != nil {
					return err
				}
			}
			return t.done(0, "slow")
		},
	},
	{
		Name: "unknown-fields", Level: Minimal, Section: "5",
		Rule: "A worker ignores fields that it does not know.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			if _, err := t.add("id", "odd", "zzz", "1", "payload", "body", "attempt", "1", "", "no name", "due_ms", "1795216995000", "H:x", "no header",
				"h:real", "yes", "binary", "\xff\x00", "entry", "1-1", "group", "another"); err != nil {
				return err
			}
			if err := t.done(0, "odd"); err != nil {
				return err
			}
			return asSent(t.begunOf("odd")[0], message{payload: "body", headers: map[string]string{"real": "yes"}})
		},
	},
	{
		Name: "plain-entry", Level: Good, Section: "5",
		Rule: "An entry that someone adds by a plain XADD is worked on: without id its entry ID counts, without attempt 1, without payload an empty one.",
		run: func(t *trial) error {
			if _, err := t.served("one"); err != nil {
				return err
			}
			entry, err := t.add("anything", "at all")
			if err != nil {
				return err
			}
			if err := t.done(0, entry); err != nil {
				return err
			}
			if err := asSent(t.begunOf(entry)[0], message{}); err != nil {
				return err
			}
			return t.once(entry)
		},
	},
	{
		Name: "several-workers", Level: Minimal, Section: "8, step 2",
		Rule: "Workers of one group share the messages: each is worked on once.",
		run: func(t *trial) error {
			if err := t.register(); err != nil {
				return err
			}
			for _, name := range []string{"one", "two", "three"} {
				if _, err := t.worker(name); err != nil {
					return err
				}
			}
			if err := t.allRead("one", "two", "three"); err != nil {
				return err
			}
			messages := several(60, "m", "slow 20")
			if err := t.schedule(messages...); err != nil {
				return err
			}
			if err := t.done(0, ids(messages)...); err != nil {
				return err
			}
			t.killAll()
			return t.once(ids(messages)...)
		},
	},
	{
		Name: "several-groups", Level: Minimal, Section: "1",
		Rule: "Each group gets every message.",
		run: func(t *trial) error {
			if err := t.register(); err != nil {
				return err
			}
			groups := []string{t.group, "audit"}
			for _, group := range groups {
				if err := t.createGroup(group); err != nil {
					return err
				}
				if _, err := t.workerOf(group, "of-"+group); err != nil {
					return err
				}
			}
			messages := several(10, "m", "ok")
			if err := t.schedule(messages...); err != nil {
				return err
			}
			if err := t.await(0, func() (string, error) {
				for _, id := range ids(messages) {
					if n := len(t.begunOf(id)); n < 2 {
						return fmt.Sprintf("message %q was begun %s, by two groups", id, times(n)), nil
					}
				}
				return t.unsettled(groups...)
			}); err != nil {
				return err
			}
			t.killAll()
			for _, id := range ids(messages) {
				if all := t.begunOf(id); len(all) != 2 || all[0].by == all[1].by || all[0].Attempt != 1 || all[1].Attempt != 1 {
					return failf("message %q was begun %s, with attempts %v; wanted once by each group, with attempt 1", id, times(len(all)), attempts(all))
				}
			}
			return nil
		},
	},
}

// passesAsSent has one worker do messages, and checks that it saw what was sent.
func (t *trial) passesAsSent(messages []message) error {
	if _, err := t.served("one"); err != nil {
		return err
	}
	if err := t.schedule(messages...); err != nil {
		return err
	}
	if err := t.done(0, ids(messages)...); err != nil {
		return err
	}
	for _, m := range messages {
		if err := asSent(t.begunOf(m.id)[0], m); err != nil {
			return err
		}
	}
	return nil
}

// allRead schedules messages until each of some workers has begun one.
func (t *trial) allRead(workers ...string) error {
	for round := 0; ; round++ {
		some := several(2*len(workers), fmt.Sprintf("first-%d", round), "slow 100")
		if err := t.schedule(some...); err != nil {
			return err
		}
		if err := t.done(0, ids(some)...); err != nil {
			return err
		}
		idle := slices.DeleteFunc(slices.Clone(workers), t.began)
		if len(idle) == 0 {
			return nil
		}
		if round == 100 {
			return failf("worker %s began none of %d messages", idle[0], len(some)*(round+1))
		}
	}
}

// began reports whether a worker began any message.
func (t *trial) began(worker string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.log, func(b begun) bool { return b.by == worker })
}

// consumers returns the names of the consumers of the trial's group.
func (t *trial) consumers() (names []string, err error) {
	reply, err := t.do("XINFO CONSUMERS", t.keys(0).Stream, t.group).ToArray()
	if missingKey(err) || noGroup(err) {
		return nil, nil
	}
	if err != nil {
		return nil, couldNot("XINFO CONSUMERS", err)
	}
	for _, one := range reply {
		about, err := one.AsMap()
		if err != nil {
			return nil, couldNot("XINFO CONSUMERS", err)
		}
		name := about["name"]
		text, _ := name.ToString()
		names = append(names, text)
	}
	return names, nil
}

func missingIf(missing bool, what string) string {
	if missing {
		return what
	}
	return ""
}

// firstError is the first of the errors of steps that do not need each other.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
