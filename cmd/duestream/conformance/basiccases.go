package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// basicCases: a worker reads, works and acknowledges.
var basicCases = []Case{
	{
		Name: "deliver", Level: Minimal, Section: "8, steps 2 and 5",
		Rule: "A worker reads what becomes ready, before and after it starts, works on it once, and acknowledges it.",
		worker: func(t *workerTrial) {
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
		worker: func(t *workerTrial) {
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
		worker: func(t *workerTrial) {
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
		worker: func(t *workerTrial) {
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
		worker: func(t *workerTrial) {
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
		worker: func(t *workerTrial) {
			t.policy("visibility_ms", "20000")
			w := t.served("one")
			t.schedule(message{id: "slow", work: "slow 4000"})
			t.pendingDuringWork(w, t.awaitBegun(0, "slow", 1), 4*time.Second)
			t.done(0, "slow")
		},
	},
	{
		Name: "unknown-fields", Level: Minimal, Section: "5",
		Rule: "A worker ignores fields that it does not know.",
		worker: func(t *workerTrial) {
			t.served("one")
			t.add("id", "odd", "zzz", "1", "payload", "body", "attempt", "1", "", "no name", "due_ms", "1795216995000", "H:x", "no header",
				"h:real", "yes", "binary", "\xff\x00", "entry", "1-1", "group", "another")
			t.done(0, "odd")
			asSent(t.begunOf("odd")[0], message{payload: "body", headers: map[string]string{"real": "yes"}})
		},
	},
	{
		Name: "plain-entry", Level: Good, Section: "5",
		Rule: "An entry that someone adds by a plain XADD is worked on: " +
			"if id is missing, the entry ID is the message ID; " +
			"if attempt is missing, it is 1; if payload is missing, it is empty.",
		worker: func(t *workerTrial) {
			t.served("one")
			entry := t.add("anything", "at all")
			t.done(0, entry)
			asSent(t.begunOf(entry)[0], message{})
			t.once(entry)
		},
	},
}

// passesAsSent lets one worker process messages, and checks that it received them as they were sent.
func (t *workerTrial) passesAsSent(messages []message) {
	t.served("one")
	t.schedule(messages...)
	t.done(0, ids(messages)...)
	for _, m := range messages {
		asSent(t.begunOf(m.id)[0], m)
	}
}

// pendingDuringWork watches the only message that a worker holds during the first 0.6 of its work, and fails if the
// worker acknowledges the message meanwhile. If the worker has ended, the case judges that.
func (t *workerTrial) pendingDuringWork(w *program, b begun, work time.Duration) {
	t.lookOn(b.at.Add(work*6/10), func() {
		if !w.running() {
			return
		}
		held := t.pending(t.group, "")
		if after := time.Since(b.at); len(held) == 0 && after < work {
			failf("%d ms after it began work of %s the entry is not pending any more", after.Milliseconds(), work)
		}
	})
}

// missingIf returns what, the text of an await that goes on, if missing is true; otherwise "".
func missingIf(missing bool, what string) string {
	if missing {
		return what
	}
	return ""
}
