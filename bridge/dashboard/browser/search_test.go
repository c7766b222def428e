package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// An operator moves all messages of a tenant to tomorrow, with the keyboard alone: he searches, counts, and moves.
func TestATenantIsMovedToTomorrowByKeyboard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.send("orders", fmt.Sprintf("order-%d", i), fmt.Sprintf(`{"order":%d,"tenant":"acme"}`, i), bridge.In(time.Hour),
			bridge.Header("tenant", "acme"))
		r.send("orders", fmt.Sprintf("other-%d", i), `{"tenant":"other"}`, bridge.In(time.Hour))
	}
	b := r.browser()
	b.logIn(access.Operate)
	b.press("/", `"tenant":"acme"`)
	b.enter()
	b.sees("5 messages match")
	b.looks("search")
	redistest.Want(t, "rows", b.count("#hits tr"), 5)
	b.press("a", "Reschedule") // to the change; a select takes the option that is typed
	b.tabTo(`button[value="all"]:not([formaction])`)
	b.enter()
	b.sees("Counted: 5 messages would be changed")
	b.looks("job-count")
	b.press("a") // to the button
	b.enter()
	b.sees("Done: 5 messages were changed")
	b.looks("job-done")
	peeked, err := r.op.Peek(t.Context(), "orders", 10, false)
	must(t, err)
	moved := 0
	for _, due := range peeked.Next {
		if due.Due.After(time.Now().Add(20 * time.Hour)) {
			moved++
		}
	}
	redistest.Want(t, "messages of tomorrow", moved, 5)
}

// Rows are selected by keyboard, and only they are changed.
func TestHitsAreSelectedByKeyboard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 4 {
		r.send("orders", fmt.Sprintf("order-%d", i), "needle", bridge.In(time.Hour))
	}
	b := r.browser()
	b.logIn(access.Operate)
	b.open("search?q=needle")
	b.sees("4 messages match")
	b.press("j", "x", "j", "x")
	b.sees("Change the selected (2)")
	b.press("x")
	b.sees("Change the selected (1)")
	b.press("x")
	b.enter() // opens the row, and sends no form
	b.sees("Story")
	redistest.Want(t, "messages", r.Number("ZCARD", r.On("orders").Keys.Due), 4)
	b.open("search?q=needle")
	b.sees("4 messages match")
	b.press("j", "x", "j", "x")
	b.set("#field-kind", "cancel")
	b.click(`button[value="chosen"].primary`)
	b.sees("Done: 2 messages were changed")
	redistest.Want(t, "messages", r.Number("ZCARD", r.On("orders").Keys.Due), 2)
}

// Before a search, the page must name the queues that it searches. It must show a fault beside its field.
func TestTheSearchPageBeforeASearch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "order-1", "needle", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.view("search-empty", "search", "Search the messages of 1 queue")
	b.expects("400")
	b.view("search-fault", "search?q=nothing-there&queues=none*&from=2030-01-01T00:00:00Z", "must match a queue")
	b.view("search-nothing", "search?q=nothing-there", "nothing matches")
}

// A search can be stopped while Redis hangs, and goes on later. A hit is shown once.
func TestASearchIsStoppedAndGoesOn(t *testing.T) {
	t.Parallel()
	redistest.Long(t)
	r := newRigOn(t, redistest.Own(t), nil)
	r.send("a-orders", "order-1", "needle", bridge.In(time.Hour))
	items := make([]lua.Item, 1000)
	for i := range 100 {
		for j := range items {
			items[j] = lua.Item{ID: fmt.Sprintf("m-%d-%d", i, j), When: lua.After(time.Hour), Payload: []byte("hay")}
		}
		r.On("b-orders").Enqueue(items...)
	}
	must(t, r.op.Register(t.Context(), "b-orders"))
	r.send("c-orders", "order-3", "needle", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.open("search?text=needle")
	b.sees("queue b-orders")
	r.Server.Pause()
	redistest.Want(t, "rows", b.count("#hits tr"), 1)
	b.looks("search-running")
	b.click("[data-stop]")
	b.sees("Stopped. What was found is shown.")
	r.streamsAre(0)
	r.Server.Resume()
	b.click("[data-go-on]")
	b.sees("2 messages match")
	redistest.Want(t, "rows", b.count("#hits tr"), 2)
}

// act sends the form of a search for all that match, counts, types the confirmation if the page asks for one, and makes
// the change.
func (b *browser) act(kind, rate string) {
	b.t.Helper()
	b.set("#field-kind", kind)
	b.click(`form[action="do-search"] button[value="all"]:not([formaction])`)
	b.isOn("job")
	b.sees("Counted:")
	if b.count("#job-next #field-confirm") > 0 {
		b.looks("job-confirm")
		redistest.Want(b.t, "buttons that work", b.count("#job-next button:enabled"), 0)
		b.fill("#field-confirm", kind)
	}
	if rate != "" {
		b.fill("#field-rate", rate)
	}
	b.click("#job-next button")
}

// Each change of all that match must have its effect in Redis. An export must hold all that match.
func TestEachChangeOfAllThatMatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 {
		r.send("late", fmt.Sprint("late-", i), "needle", bridge.In(time.Hour))
	}
	for _, queue := range []string{"redriven", "purged"} {
		r.dead(queue, "mailer", lua.ReasonMaxAttempts, "no such needle", numbered(queue, 3)...)
	}
	b := r.browser()
	b.logIn(access.Operate)
	search := func(queue string) {
		t.Helper()
		b.open("search?state=scheduled&state=dead&queues=" + queue)
		b.sees("3 messages match")
	}
	search("late")
	lines := strings.Split(strings.TrimSpace(string(b.downloads(`button[value="all"][formaction="search-export"]`))), "\n")
	redistest.Want(t, "lines of the export", len(lines), 3)
	b.act("expire", "")
	b.sees("Done: 3 messages were changed")
	for i := range 3 {
		redistest.Want(t, "expires", r.placeIn("late", fmt.Sprint("late-", i)).Expires.IsZero(), false)
	}
	search("redriven")
	b.act("redrive", "")
	b.sees("Done: 3 messages were changed")
	redistest.Want(t, "letters after the redrive", r.letters("redriven"), 0)
	search("purged")
	b.act("purge", "")
	b.sees("Done: 3 messages were changed")
	redistest.Want(t, "letters after the purge", r.letters("purged"), 0)
	redistest.Want(t, "messages after the purge", r.Number("ZCARD", r.On("purged").Keys.Due), 0)
}

// A change that runs must be shown to its viewer and in the list of changes, and a stop must leave the rest alone.
func TestAChangeIsStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const all = 500
	for i := range all {
		r.send("orders", fmt.Sprint("order-", i), "needle", bridge.In(time.Hour))
	}
	secret := r.token([]access.Verb{access.Operate})
	b, other := r.browser(), r.browser()
	b.logInWith(secret)
	b.open("search?text=needle")
	b.sees("match")
	b.act("cancel", "1")
	b.sees("Running. You may leave this page.")
	b.looks("job-running")
	other.logInWith(secret)
	other.view("search-jobs", "search", "Changes that run")
	b.click(`form[action="do-stop-job"] button`)
	b.sees("Stopped. What was changed stays changed.")
	b.looks("job-stopped")
	left := r.Number("ZCARD", r.On("orders").Keys.Due)
	if left < 1 || left == all {
		t.Errorf("%d of %d messages are left", left, all)
	}
	other.open("search")
	other.sees("stopped")
}
