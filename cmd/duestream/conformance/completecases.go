package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

const (
	unhurried = time.Minute      // a visibility timeout that plays no part
	soon      = 10 * time.Second // well before it
)

// What needs the scripts.
var completeCases = []Case{
	{
		Name: "retry-after", Level: Complete, Section: "8, step 6, and 9",
		Rule: "A failure with a delay of its own comes back after that delay, not after the visibility timeout, with attempt 2, and says why in the field error.",
		run: func(t *trial) error {
			const observer = "observer" // it never acknowledges, so that the entries stay
			if err := firstError(t.unhurry(), t.register(), t.createGroup(observer)); err != nil {
				return err
			}
			if _, err := t.served("one"); err != nil {
				return err
			}
			if err := t.schedule(message{id: "later", work: "retry 300"}); err != nil {
				return err
			}
			if _, err := t.awaitBegun(0, "later", 1); err != nil {
				return err
			}
			if _, err := t.awaitBegun(soon, "later", 2); err != nil {
				return err
			}
			if err := t.awaitAttempts("later", 1, 2); err != nil {
				return err
			}
			if err := t.done(0, "later"); err != nil {
				return err
			}
			entries, err := t.entries(t.keys(0).Stream)
			if err != nil {
				return err
			}
			entries = slices.DeleteFunc(entries, func(e entry) bool { return e.Fields[lua.FieldID] != "later" })
			if len(entries) != 2 {
				return failf("the message is in %d entries; wanted 2", len(entries))
			}
			due, _ := strconv.ParseInt(entries[1].Fields[lua.FieldDue], 10, 64)
			if waited := due - entries[0].ready().UnixMilli(); waited < 300 {
				return failf("the second attempt was due %d ms after the first was ready; it was to wait for 300 ms", waited)
			}
			if text := entries[1].Fields[lua.FieldError]; !strings.Contains(text, "asked to retry") {
				return failf("the field error of the second attempt is %q; wanted the error text of the worker, which has %q in it", text, "asked to retry")
			}
			return nil
		},
	},
	{
		Name: "dead-letter", Level: Complete, Section: "10",
		Rule: "A dead letter that a worker asks for is made at once, with reason dead_letter, its group, and the error text.",
		run: func(t *trial) error {
			if err := t.unhurry(); err != nil {
				return err
			}
			if _, err := t.served("one"); err != nil {
				return err
			}
			if err := t.schedule(message{id: "doomed", work: "dead", payload: "body"}); err != nil {
				return err
			}
			if _, err := t.awaitBegun(0, "doomed", 1); err != nil {
				return err
			}
			letter, err := t.letter("doomed", soon)
			if err != nil {
				return err
			}
			want := map[string]string{lua.FieldReason: lua.ReasonDeadLetter, lua.FieldGroup: t.group, lua.FieldAttempt: "1", lua.FieldPayload: "body"}
			for name, value := range want {
				if got := letter.Fields[name]; got != value {
					return failf("the dead letter has %s %q; wanted %q", name, got, value)
				}
			}
			if text := letter.Fields[lua.FieldError]; !strings.Contains(text, "asked to die") {
				return failf("the dead letter has error %q; wanted the error text of the worker, which has %q in it", text, "asked to die")
			}
			if err := t.done(0, "doomed"); err != nil {
				return err
			}
			t.killAll()
			return t.once("doomed")
		},
	},
	{
		Name: "stop-releases", Level: Complete, Section: "6 (release) and 15",
		Rule: "At SIGTERM a worker releases what it holds and did not begin: it comes to another worker at once, with the same attempt.",
		run: func(t *trial) error {
			if err := t.unhurry(); err != nil {
				return err
			}
			one, err := t.served("one")
			if err != nil {
				return err
			}
			messages := several(40, "m", "slow 1000")
			if err := t.schedule(messages...); err != nil {
				return err
			}
			begun := func() (n int) {
				for _, m := range messages {
					n += len(t.begunOf(m.id))
				}
				return n
			}
			if err := t.await(0, func() (string, error) { return missingIf(begun() == 0, "no message was begun"), nil }); err != nil {
				return err
			}
			t.stop(one)
			if err := t.exited(one, stopWithin); err != nil {
				return err
			}
			held, err := t.pending(t.group, "")
			if err != nil {
				return err
			}
			if len(held) > 0 {
				return failf("%d entries are still pending after the worker, which had begun %d of %d messages, has ended", len(held), begun(), len(messages))
			}
			rest := map[string]string{}
			return t.await(soon, func() (string, error) {
				entries, err := t.readAs(t.group, true)
				for _, e := range entries {
					rest[e.Fields[lua.FieldID]] = e.Fields[lua.FieldAttempt]
				}
				for _, m := range messages {
					attempt, came := rest[m.id]
					switch before := len(t.begunOf(m.id)); {
					case came && before > 0:
						return "", failf("message %q, which the stopped worker had begun, came again with attempt %s", m.id, attempt)
					case came && attempt != "1":
						return "", failf("message %q, which was not begun, came with attempt %s; wanted 1", m.id, attempt)
					case !came && before == 0:
						return fmt.Sprintf("message %q, which was not begun, did not come to another worker", m.id), err
					}
				}
				return "", err
			})
		},
	},
}

// unhurry gives the queue a visibility timeout that plays no part.
func (t *trial) unhurry() error {
	return t.policy(admin.SettingVisibility, strconv.FormatInt(unhurried.Milliseconds(), 10))
}
