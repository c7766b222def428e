package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// comingBackCases: messages that come to a worker again, and entries for one group only.
var comingBackCases = []Case{
	{
		Name: "same-name", Level: Minimal, Section: "8, steps 5 and 6",
		Rule: "What a worker held when it was killed is not lost when it starts again under the same name: it is worked on again.",
		worker: func(t *workerTrial) {
			// Long enough for the worker to start again before a bridge reclaims the messages that it held.
			t.policy(admin.SettingVisibility, "6000")
			one := t.served("one")
			messages := several(4, "held", "slow 1000")
			t.schedule(messages...)
			victim := t.awaitAnyBegun(messages)
			one.kill()
			t.worker("one")
			during("after SIGKILL of the worker, and its start under the same name", func() {
				t.awaitBegun(0, victim, 2)
			})
			t.done(0, ids(messages)...)
		},
	},
	{
		Name: "last-attempt", Level: Minimal, Section: "9",
		Rule: "A worker takes no part in counting: what fails at its last attempt becomes a dead letter, and is not acknowledged.",
		worker: func(t *workerTrial) {
			t.served("one")
			t.schedule(message{id: "hopeless", work: "fail 1000", maxAttempts: 3, payload: "body"}, message{id: "at-last", work: "fail 2", maxAttempts: 3})
			letter := t.letter("hopeless", 0)
			if got := letter.Fields[lua.FieldAttempt]; got != "3" || letter.Fields[lua.FieldPayload] != "body" {
				failf("the dead letter has attempt %q, payload %q; wanted 3 and %q", got, letter.Fields[lua.FieldPayload], "body")
			}
			t.awaitAttempts("at-last", 1, 2, 3)
			t.done(0, "hopeless", "at-last")
		},
	},
	{
		Name: "same-id", Level: Minimal, Section: "7 (IDs) and 8, step 4",
		Rule: "A message ID may be used again, also at the same time: each entry is worked on, whatever IDs a worker has seen before.",
		worker: func(t *workerTrial) {
			t.served("one")
			for n := range 2 {
				m := message{id: "again", payload: fmt.Sprint("body ", n+1)}
				t.schedule(m)
				b := t.awaitBegun(0, m.id, n+1)
				asSent(b, m)
				t.done(0, m.id)
			}
			for range 2 {
				t.add("id", "twins", "attempt", "1", "h:work", "slow 50")
			}
			t.awaitBegun(0, "twins", 2)
			t.done(0, "twins")
		},
	},
	{
		Name: "for-own-group", Level: Good, Section: "5 and 8, step 3",
		Rule: "An entry whose field `for` is empty, or names the worker's group, is worked on, whatever attempt it is. " +
			"One whose field `for` names another group is not.",
		worker: func(t *workerTrial) {
			t.served("one")
			own := map[string][2]string{"empty": {"", "1"}, "empty-third": {"", "3"}, "own-first": {t.group, "1"},
				"own-second": {t.group, "2"}, "own-seventh": {t.group, "7"}}
			other := map[string][2]string{
				"other-first": {"other", "1"}, "other-second": {"other", "2"}, "other-ninth": {"other", "9"}, "longer": {t.group + "-2", "2"}, "shorter": {t.group[:3], "2"}, "capital": {strings.ToUpper(t.group), "2"},
			}
			var want []string
			for _, all := range []map[string][2]string{other, own} {
				for id, entry := range all {
					t.add("id", id, "payload", "body", "for", entry[0], "attempt", entry[1])
				}
			}
			for id := range own {
				want = append(want, id)
			}
			t.done(0, want...)
			t.killAll()
			for id, entry := range own {
				if got := attempts(t.begunOf(id)); fmt.Sprint(got) != "["+entry[1]+"]" {
					failf("message %q was begun with attempts %v; wanted attempt %s once", id, got, entry[1])
				}
			}
			for id, entry := range other {
				if n := len(t.begunOf(id)); n > 0 {
					failf("message %q, which is for group %q, was begun by group %q", id, entry[0], t.group)
				}
			}
		},
	},
	{
		Name: "killed-after-extending", Level: Good, Section: "8, step 7, and 9",
		Rule: "Work that was extended several times is one attempt: when its worker is killed then, the message comes back with attempt 2.",
		worker: func(t *workerTrial) {
			one := t.served("one")
			t.schedule(message{id: "long", work: t.slow(6)})
			t.awaitBegun(0, "long", 1)
			t.watching(t.cfg.Visibility*8/5, "long")
			one.kill()
			t.worker("two")
			if again := t.awaitBegun(0, "long", 2); again.Attempt != 2 {
				failf("its worker was killed in the first attempt, and message %q came back with attempt %d; wanted 2", "long", again.Attempt)
			}
		},
	},
	{
		Name: "killed-by-message", Level: Good, Section: "8 (At the start)",
		Rule: "A worker leaves alone what one of its name held when it was killed: it comes back with the next attempt, so a message that kills its worker each time is given up, however soon that starts again.",
		worker: func(t *workerTrial) {
			w := t.served("one")
			t.schedule(message{id: "deadly", work: "slow 60000", maxAttempts: 2})
			for attempt := 1; attempt <= 2; attempt++ {
				b := t.awaitBegun(0, "deadly", attempt)
				if b.Attempt != attempt {
					failf("a worker that started again under the same name began message %q, which had killed it, with attempt %d; wanted %d",
						b.ID, b.Attempt, attempt)
				}
				w.kill()
				w = t.worker("one")
			}
			t.letter("deadly", 0)
		},
	},
	{
		Name: "limits", Level: Minimal, Section: "13",
		Rule: "Names, IDs, headers and attempts are taken up to their limits.",
		worker: func(t *workerTrial) {
			t.group = strings.Repeat("g", 250) + "röß"
			t.register()
			t.worker(strings.Repeat("c", 251) + "→é")
			wide := map[string]string{"large": strings.Repeat(`"ß\`, 2048)[:8192]}
			for i := range 62 {
				wide[fmt.Sprintf("%02d-%s", i, strings.Repeat("n", 125))] = strings.Repeat("v", 200)
			}
			messages := []message{
				{id: strings.Repeat("→", 85) + "x", headers: wide},
				{id: " ", payload: " "},
				{id: "-", headers: map[string]string{"n": "0"}},
			}
			t.schedule(messages...)
			t.add("id", "millionth", "attempt", "1000000", "max_attempts", "1000000", "due_ms", "9999999999999")
			t.done(0, append(ids(messages), "millionth")...)
			for _, m := range messages {
				asSent(t.begunOf(m.id)[0], m)
			}
			if got := attempts(t.begunOf("millionth")); !slices.Equal(got, []int{1000000}) {
				failf("message %q was begun with attempts %v; wanted 1000000", "millionth", got)
			}
		},
	},
}

// watching waits, and fails if a message is begun again or a program is in trouble.
func (t *workerTrial) watching(long time.Duration, id string) {
	t.lookOn(time.Now().Add(long), func() {
		if all := t.begunOf(id); len(all) > 1 {
			failf("message %q was begun %s, with attempts %v, the second time after %s", id, times(len(all)), attempts(all), all[1].at.Sub(all[0].at).Round(time.Millisecond))
		}
	})
}
