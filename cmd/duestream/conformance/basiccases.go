package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/internal/view"
)

// basicCases: a worker reads, works and acknowledges.
var basicCases = []Case{
	{
		Name: "deliver", Level: Minimal, Section: "8, steps 2 and 5",
		Rule: "A worker reads what becomes ready, before and after it starts, works on it once, and acknowledges it.",
		run: func(t *trial) {
			before := several(5, "before", "ok")
			for i := range before {
				before[i].payload = "payload of " + before[i].id
			}
			after := several(5, "after", "")
			for i := range after {
				after[i].in, after[i].headers = time.Duration(i)*50*time.Millisecond,
					map[string]string{"kind": "order", "n": fmt.Sprint(i)}
			}
			all := append(slices.Clone(before), after...)
			t.register()
			t.createGroup(t.group)
			t.schedule(before...)
			t.worker("one")
			t.done(0, ids(before)...)
			t.schedule(after...)
			t.done(0, ids(all)...)
			t.killAll()
			for _, m := range all {
				asSent(t.begunOf(m.id)[0], m)
			}
			t.once(ids(all)...)
		},
	},
	{
		Name: "first-start", Level: Minimal, Section: "8, step 1",
		Rule: "A worker creates its group at 0, so that it also gets what became ready before the group existed.",
		run: func(t *trial) {
			t.register()
			t.schedule(message{id: "early"})
			t.await(0, func() string {
				return missingIf(t.number("XLEN", t.keys(0).Stream) == 0, "the bridge has not made the message ready")
			})
			t.worker("one")
			t.done(0, "early")
		},
	},
	{
		Name: "payload", Level: Minimal, Section: "5",
		Rule: "A payload is bytes, any of them, none, or 1 MiB; a worker gets them as they were sent.",
		run: func(t *trial) {
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
			t.passesAsSent(messages)
		},
	},
	{
		Name: "headers", Level: Minimal, Section: "5",
		Rule: "Header names and values and message IDs are UTF-8; a worker gets them as they were sent.",
		run: func(t *trial) {
			t.passesAsSent([]message{
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
		run: func(t *trial) {
			t.queue, t.group = "A.b_c:d-"+t.queue, `équipe "1" à 100 %`
			t.register()
			t.worker("nº 1/a:b")
			t.marker("named")
			if found := t.consumers(); !slices.Contains(found, "nº 1/a:b") {
				failf("the group has consumers %q, but not the one that CONSUMER names", found)
			}
		},
	},
	{
		Name: "ack-after-work", Level: Minimal, Section: "8, step 5",
		Rule: "A worker acknowledges a message when its work is done, not before: until then the entry is pending.",
		run: func(t *trial) {
			t.policy("visibility_ms", "20000")
			t.served("one")
			const work, watched = 4 * time.Second, 800 * time.Millisecond
			t.schedule(message{id: "slow", work: "slow 4000"})
			b := t.awaitBegun(0, "slow", 1)
			for time.Since(b.at) < watched {
				held := t.pending(t.group, "")
				if after := time.Since(b.at); len(held) == 0 && after < work {
					failf("%d ms after it began work of %s the entry is not pending any more", after.Milliseconds(), work)
				}
				t.pause(lookFirst)
				check(t.trouble())
			}
			t.done(0, "slow")
		},
	},
	{
		Name: "unknown-fields", Level: Minimal, Section: "5",
		Rule: "A worker ignores fields that it does not know.",
		run: func(t *trial) {
			t.served("one")
			t.add("id", "odd", "zzz", "1", "payload", "body", "attempt", "1", "", "no name", "due_ms", "1795216995000", "H:x", "no header",
				"h:real", "yes", "binary", "\xff\x00", "entry", "1-1", "group", "another")
			t.done(0, "odd")
			asSent(t.begunOf("odd")[0], message{payload: "body", headers: map[string]string{"real": "yes"}})
		},
	},
	{
		Name: "plain-entry", Level: Good, Section: "5",
		Rule: "An entry that someone adds by a plain XADD is worked on: without id its entry ID counts, without attempt 1, without payload an empty one.",
		run: func(t *trial) {
			t.served("one")
			entry := t.add("anything", "at all")
			t.done(0, entry)
			asSent(t.begunOf(entry)[0], message{})
			t.once(entry)
		},
	},
	{
		Name: "several-workers", Level: Minimal, Section: "8, step 2",
		Rule: "Workers of one group share the messages: each is worked on once.",
		run: func(t *trial) {
			t.register()
			for _, name := range []string{"one", "two", "three"} {
				t.worker(name)
			}
			t.allRead("one", "two", "three")
			messages := several(60, "m", "slow 20")
			t.schedule(messages...)
			t.done(0, ids(messages)...)
			t.killAll()
			t.once(ids(messages)...)
		},
	},
	{
		Name: "several-groups", Level: Minimal, Section: "1",
		Rule: "Each group gets every message.",
		run: func(t *trial) {
			t.register()
			groups := []string{t.group, "audit"}
			for _, group := range groups {
				t.createGroup(group)
				t.workerOf(group, "of-"+group)
			}
			messages := several(10, "m", "ok")
			t.schedule(messages...)
			t.await(0, func() string {
				for _, id := range ids(messages) {
					if n := len(t.begunOf(id)); n < 2 {
						return fmt.Sprintf("message %q was begun %s, by two groups", id, times(n))
					}
				}
				return t.unsettled(groups...)
			})
			t.killAll()
			for _, id := range ids(messages) {
				if all := t.begunOf(id); len(all) != 2 || all[0].by == all[1].by || all[0].Attempt != 1 || all[1].Attempt != 1 {
					failf("message %q was begun %s, with attempts %v; wanted once by each group, with attempt 1", id, times(len(all)), attempts(all))
				}
			}
		},
	},
}

// passesAsSent lets one worker process messages, and checks that it received them as they were sent.
func (t *trial) passesAsSent(messages []message) {
	t.served("one")
	t.schedule(messages...)
	t.done(0, ids(messages)...)
	for _, m := range messages {
		asSent(t.begunOf(m.id)[0], m)
	}
}

// allRead schedules messages until each of the workers has begun one.
func (t *trial) allRead(workers ...string) {
	for round := 0; ; round++ {
		some := several(2*len(workers), fmt.Sprintf("first-%d", round), "slow 100")
		t.schedule(some...)
		t.done(0, ids(some)...)
		idle := slices.DeleteFunc(slices.Clone(workers), t.began)
		if len(idle) == 0 {
			return
		}
		if round == 100 {
			failf("worker %s began none of %d messages", idle[0], len(some)*(round+1))
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
func (t *trial) consumers() (names []string) {
	list, err := view.ReadConsumers(t.ctx, t.redis.Client, t.keys(0).Stream, t.group)
	couldNot("XINFO CONSUMERS", err)
	for _, one := range list {
		names = append(names, one.Name)
	}
	return names
}

func missingIf(missing bool, what string) string {
	if missing {
		return what
	}
	return ""
}
