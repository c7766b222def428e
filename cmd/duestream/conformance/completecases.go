package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

const (
	unhurried = time.Minute      // a visibility timeout longer than any case
	soon      = 10 * time.Second // well before that timeout
)

// completeCases: workers that call the scripts.
var completeCases = []Case{
	{
		Name: "retry-after", Level: Complete, Section: "8, step 6, and 9",
		Rule: "A failure with a delay of its own comes back after that delay, not after the visibility timeout, with attempt 2, and says why in the field error.",
		worker: func(t *workerTrial) {
			const observer = "observer" // a group that never acknowledges keeps the entries
			t.unhurry()
			t.register()
			t.createGroup(observer)
			t.served("one")
			t.schedule(message{id: "later", work: "retry 300"})
			t.awaitBegun(0, "later", 1)
			t.awaitBegun(soon, "later", 2)
			t.awaitAttempts("later", 1, 2)
			t.done(0, "later")
			entries := t.entries(t.keys(0).Stream)
			entries = slices.DeleteFunc(entries, func(e entry) bool { return e.Fields[lua.FieldID] != "later" })
			if len(entries) != 2 {
				failf("the message is in %d entries; wanted 2", len(entries))
			}
			due, _ := strconv.ParseInt(entries[1].Fields[lua.FieldDue], 10, 64)
			if waited := due - entries[0].ready().UnixMilli(); waited < 300 {
				failf("the second attempt was due %d ms after the first was ready; it was to wait for 300 ms", waited)
			}
			if text := entries[1].Fields[lua.FieldError]; !strings.Contains(text, "asked to retry") {
				failf("the field error of the second attempt is %q; wanted the error text of the worker, which has %q in it", text, "asked to retry")
			}
		},
	},
	{
		Name: "dead-letter", Level: Complete, Section: "10",
		Rule: "A dead letter that a worker asks for is made at once, with reason dead_letter, its group, and the error text.",
		worker: func(t *workerTrial) {
			t.unhurry()
			t.served("one")
			t.schedule(message{id: "doomed", work: "dead", payload: "body"})
			t.awaitBegun(0, "doomed", 1)
			letter := t.letter("doomed", soon)
			want := map[string]string{lua.FieldReason: lua.ReasonDeadLetter, lua.FieldGroup: t.group, lua.FieldAttempt: "1",
				lua.FieldPayload: "body"}
			for name, value := range want {
				if got := letter.Fields[name]; got != value {
					failf("the dead letter has %s %q; wanted %q", name, got, value)
				}
			}
			if text := letter.Fields[lua.FieldError]; !strings.Contains(text, "asked to die") {
				failf("the dead letter has error %q; wanted the error text of the worker, which has %q in it", text, "asked to die")
			}
			t.done(0, "doomed")
			t.killAll()
			t.once("doomed")
		},
	},
	{
		Name: "keys", Level: Complete, Section: "20",
		Rule: "A message with a key that fails comes back after the delay that its worker asks for, or becomes a dead " +
			"letter at once; then the next one of the key comes, and others go on.",
		worker: func(t *workerTrial) {
			t.unhurry()
			t.served("one")
			const customer, another = "customer-7", "customer-8"
			t.schedule(message{id: "first", work: "retry 300", key: customer},
				message{id: "second", key: customer, in: time.Millisecond},
				message{id: "doomed", work: "dead", key: another})
			t.awaitBegun(soon, "first", 2)
			t.letter("doomed", soon)
			t.schedule(message{id: "beside", work: "retry 300"})
			t.awaitBegun(soon, "beside", 2)
			t.done(0, "second")
			t.awaitAttempts("first", 1, 2)
			t.awaitAttempts("doomed", 1)
			if second, retry := t.begunOf("second"), t.begunOf("first")[1]; second[0].at.Before(retry.at) {
				failf("message %q was begun before the second attempt of %q, which has the same key", "second", "first")
			}
		},
	},
	{
		Name: "stop-releases", Level: Complete, Section: "6 (release) and 15",
		Rule: "At SIGTERM a worker releases what it holds and did not begin, with a key or without one: it comes to " +
			"another worker at once, with the same attempt.",
		worker: func(t *workerTrial) {
			t.unhurry()
			one := t.served("one")
			messages := several(40, "m", "slow 1000")
			for i := range messages {
				if i%2 == 1 {
					messages[i].key = messages[i].id
				}
			}
			t.schedule(messages...)
			t.awaitAnyBegun(messages)
			t.stop(one)
			t.exited(one, stopWithin)
			if held := t.pending(t.group, ""); len(held) > 0 {
				begun := slices.DeleteFunc(slices.Clone(messages), func(m message) bool { return len(t.begunOf(m.id)) == 0 })
				failf("%d entries are still pending after the worker, which had begun %d of %d messages, has ended", len(held), len(begun), len(messages))
			}
			rest := map[string]string{}
			t.await(soon, func() string {
				for _, e := range t.readAs(t.group, true) {
					rest[e.Fields[lua.FieldID]] = e.Fields[lua.FieldAttempt]
				}
				for _, m := range messages {
					attempt, came := rest[m.id]
					switch before := len(t.begunOf(m.id)); {
					case came && before > 0:
						failf("message %q, which the stopped worker had begun, came again with attempt %s", m.id, attempt)
					case came && attempt != "1":
						failf("message %q, which was not begun, came with attempt %s; wanted 1", m.id, attempt)
					case !came && before == 0:
						return fmt.Sprintf("message %q, which was not begun, did not come to another worker", m.id)
					}
				}
				return ""
			})
		},
	},
}
