package browser

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// dead adds dead letters of a queue: one for each ID, from some hours ago until now.
func (r *rig) dead(queue, group, reason, text string, ids ...string) {
	r.T.Helper()
	q := r.On(queue)
	q.Groups(group)
	must(r.T, r.op.Register(r.T.Context(), queue))
	for i, id := range ids {
		died := time.Now().Add(-time.Duration(len(ids)-i-1) * time.Hour / 2)
		q.Do("EVAL", `return redis.call("XADD", KEYS[1], "*", "id", ARGV[1], "group", ARGV[2], "reason", ARGV[3], "error",
			ARGV[4], "payload", ARGV[5], "h:tenant", "acme", "attempt", "5", "max_attempts", "5", "dead_ms", ARGV[6])`, "1",
			q.Keys.Dead, id, group, reason, text, `{"order": 42, "to": "ann@example.com"}`, fmt.Sprint(died.UnixMilli()))
	}
}

// letters returns the number of dead letters of a queue.
func (r *rig) letters(queue string) int {
	r.T.Helper()
	n, err := r.op.DeadLetters().Count(r.T.Context(), queue, admin.LetterFilter{})
	must(r.T, err)
	return n
}

// numbered returns IDs with numbers.
func numbered(name string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(name, "-", i))
	}
	return ids
}

// Each page about dead letters has no violation of accessibility and fits the window, with letters and without.
func TestPagesOfDeadLettersAreAccessible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "POST https://partner.example/v1/orders: 503 Service Unavailable",
		numbered("order", 40)...)
	r.dead("orders", "audit", lua.ReasonDeadLetter, "no such customer: <script>alert(1)</script>"+strings.Repeat("x", 700),
		"late-1")
	r.dead("mails", "sender", lua.ReasonExpired, "", numbered("mail", 3)...)
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.view("dead-none", "dead?queue=mails&group=nobody", "None of the letters")
	b.view("dead", "dead", "503 Service Unavailable")
	b.view("dead-of-queue", "dead?queue=orders", "All were read")
	b.view("dead-letters", "dead-letters?queue=orders", "order-39")
	b.view("dead-letters-none", "dead-letters?queue=orders&id=nothing", "No further letter matches")
	b.open("dead-letters?queue=orders&group=audit")
	b.click("tbody a")
	b.sees("Failed for good")
	b.looks("dead-letter")
	b.view("dead-redrive", "dead-redrive?queue=orders&reason=max_attempts", "Count first")
	must(t, r.op.Register(t.Context(), "quiet"))
	b.view("dead-empty", "dead?queue=quiet", "quiet has no dead letters")
}

// Keys alone select two letters, redrive them to another group, and come back to the list.
func TestLettersAreRedrivenByKeyboardAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", numbered("order", 4)...)
	r.On("orders").Groups("second")
	b := r.browser()
	b.logIn(access.Operate)
	b.tabTo(`nav a[href="dead"]`)
	b.enter()
	b.sees("Letters per hour")
	b.toFirstRow()
	b.enter()
	b.sees("Redrive selected (0)")
	b.toFirstRow()
	b.press("x", "j", "x")
	redistest.Want(t, "selected", b.count(`input[name="letter"]:checked`), 2)
	b.sees("Redrive selected (2)")
	b.tabTo("button.redrive")
	b.enter()
	b.sees("Redrive 2 dead letters")
	b.tabTo("#field-to")
	b.press("s", "e", "c", "o", "n", "d")
	b.tabTo(`form[action="do-dead-redrive"] button.primary`)
	b.enter()
	b.sees("2 letters were redriven to group second.")
	b.sees("order-1")
	b.lacks("order-3")
	redistest.Want(t, "letters", r.letters("orders"), 2)
	peeked, err := r.op.Peek(t.Context(), "orders", 10, false)
	must(t, err)
	redistest.Want(t, "scheduled", peeked.Total, int64(2))
}

// toFirstRow marks the first row.
func (b *browser) toFirstRow() {
	b.t.Helper()
	b.press("j")
}

// An edited letter goes through the difference, and line breaks of the payload stay as they were.
func TestLetterIsEditedInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", "order-1")
	b := r.browser()
	b.logIn(access.Operate)
	b.expects("400")
	b.open("dead-letters?queue=orders")
	b.click("tbody a")
	b.click(`a[href^="dead-edit"]`)
	b.looks("dead-edit")
	b.set("#field-payload", "{\"order\": 42,\n\n")
	b.click(`form[action="do-dead-edit"] button.primary`)
	b.sees("must be JSON, because it was: line 3")
	b.set("#field-payload", "\n{\"order\": 42,\n\"to\": \"bob@example.com\"}\n")
	b.click(`form[action="do-dead-edit"] button.primary`)
	b.sees("Nothing is changed yet")
	b.sees("bob@example.com")
	b.looks("dead-difference")
	b.click(`form[action="do-dead-edit"] button.primary`)
	b.sees("1 letter was redriven.")
	peeked, err := r.op.Peek(t.Context(), "orders", 1, true)
	must(t, err)
	redistest.Want(t, "payload", string(peeked.Next[0].Payload), "\n{\"order\": 42,\n\"to\": \"bob@example.com\"}\n")
}

// A purge of all letters that match counts them, and its button works only after the number was typed.
func TestAllLettersArePurgedInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", numbered("order", 30)...)
	r.dead("orders", "audit", lua.ReasonMaxAttempts, "503", "other")
	b := r.browser()
	b.logIn(access.Operate)
	b.open("dead-letters?queue=orders&group=mailer")
	b.click(`a[href^="dead-purge"]`)
	b.click(`form[action="do-dead-purge"] button.primary`)
	b.sees("30 messages would be changed")
	redistest.Want(t, "buttons that work", b.count("#job-next button:enabled"), 0)
	b.fill("#field-confirm", "30")
	b.looks("dead-purge")
	b.click("#job-next button:enabled")
	b.sees("30 messages were changed")
	redistest.Want(t, "letters", r.letters("orders"), 1)
}

// A page of dead letters follows the queue by itself after another viewer's redrive.
func TestDeadFollowsAnotherViewer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", numbered("order", 3)...)
	watcher, other := r.browser(), r.browser()
	watcher.logIn(access.Inspect)
	watcher.open("dead?queue=orders")
	watcher.sees("3 letters")
	other.logIn(access.Operate)
	other.open("dead-letters?queue=orders")
	other.click("tbody a")
	other.click(`form[action="do-dead-redrive"] button.primary`)
	other.sees("1 letter was redriven.")
	watcher.sees("2 letters")
}

// recurrence returns a recurrence of the queue "reports".
func (r *rig) recurrence(name string) bridge.Recurrence {
	r.T.Helper()
	s, err := r.op.Recurrence(r.T.Context(), "reports", name)
	must(r.T, err)
	return s.Spec
}

// Each page about recurrences has no violation of accessibility and fits the window, with recurrences and without.
func TestRecurrencesInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.browser()
	b.expects("400")
	b.logIn(access.Verbs()...)
	b.view("recurrences-empty", "recurrences", "There is no recurrence")
	for _, spec := range []bridge.Recurrence{
		{Name: "nightly", Cron: "@daily", Zone: "Europe/Paris", Owner: "billing", Payload: []byte(`{"to": "all"}`)},
		{Name: "ping", Every: 90 * time.Second, Overlap: bridge.OverlapSkip, Paused: true},
		{Name: "invoice", Cron: "0 9 1,15 * *", Zone: "Europe/Berlin", Missed: bridge.MissedAll},
	} {
		spec.Queue = "reports"
		_, err := r.op.Recur(t.Context(), spec)
		must(t, err)
	}
	b.view("recurrences", "recurrences", "on the 1st and 15th")
	b.click(`a[href*="name=nightly"]`)
	b.sees("at 00:00 every day in Europe/Paris")
	planned := r.Number("ZCARD", r.On("reports").Keys.Due)
	b.click(`[formaction="do-recurrence-run"]`)
	b.sees("was scheduled for now")
	redistest.Want(t, "scheduled by hand", r.Number("ZCARD", r.On("reports").Keys.Due)-planned, 1)
	b.click(`[formaction="do-recurrence-pause"]`)
	b.sees("It is paused.")
	redistest.Want(t, "paused", r.recurrence("nightly").Paused, true)
	b.looks("recurrence-paused")
	b.click(`[formaction="do-recurrence-resume"]`)
	b.lacks("It is paused.")
	redistest.Want(t, "paused after resume", r.recurrence("nightly").Paused, false)
	b.view("recurrence", "recurrence?queue=reports&name=nightly", "Next occurrences")
	b.open("recurrence-edit?queue=reports")
	b.fill("#field-name", "hourly")
	b.fill("#field-cron", "0 25 * * *")
	b.click(`form[action="do-recurrence-save"] button.primary`)
	b.sees("must be 0 to 23")
	b.looks("recurrence-edit")
	b.fill("#field-cron", "@hourly")
	b.set("#field-overlap", "skip")
	b.click(`form[action="do-recurrence-save"] button.primary`)
	b.sees("every hour in")
	b.looks("recurrence-preview")
	b.click(`form[action="do-recurrence-save"] button.primary`)
	b.sees("hourly was added.")
	redistest.Want(t, "stored", r.recurrence("hourly").Cron, "@hourly")
	b.click(`[data-opens="remove"]`)
	redistest.Want(t, "buttons that work", b.count("#remove button.danger:enabled"), 0)
	b.fill("#field-confirm", "hourly")
	b.click(`form[action="do-recurrence-remove"] button.danger`)
	b.sees("hourly was removed.")
	if _, err := r.op.Recurrence(t.Context(), "reports", "hourly"); !errors.Is(err, bridge.ErrNoRecurrence) {
		t.Errorf("the recurrence is still there: %v", err)
	}
}
