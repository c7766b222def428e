package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

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
	redistest.Eventually(t, patience, func() (bool, string) { // the script of the page may not run yet
		b.press("/")
		var there bool
		b.eval(`document.activeElement.id === "quick-search"`, &there)
		return there, "the key / does not lead to the search"
	})
	b.press("Backspace") // a test types the character into the field that gets the focus
	b.run(chromedp.KeyEvent(`"tenant":"acme"`))
	b.press("Enter")
	b.sees("5 messages match")
	b.looks("search")
	redistest.Want(t, "rows", b.count("#hits tr"), 5)
	b.press("a")                           // to the change
	b.run(chromedp.KeyEvent("Reschedule")) // a select takes the option that is typed
	b.tabTo(`button[value="all"]:not([formaction])`)
	b.press("Enter")
	b.sees("Counted: 5 messages would be changed")
	b.looks("job-count")
	b.press("a") // to the button
	b.press("Enter")
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

// tabTo presses Tab until an element has the focus.
func (b *browser) tabTo(selector string) {
	b.t.Helper()
	for range 100 {
		b.press("Tab")
		var there bool
		if b.eval(fmt.Sprintf("document.activeElement.matches(%q)", selector), &there); there {
			return
		}
	}
	b.t.Fatalf("the key Tab does not reach %s", selector)
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
	b.press("Enter") // opens the row, and sends no form
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
	b.open("search")
	b.sees("Search the messages of 1 queue")
	b.looks("search-empty")
	b.expects("400")
	b.open("search?q=nothing-there&queues=none*&from=2030-01-01T00:00:00Z")
	b.sees("must match a queue")
	b.looks("search-fault")
	b.open("search?q=nothing-there")
	b.sees("nothing matches")
	b.looks("search-nothing")
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
	redistest.Eventually(t, patience, func() (bool, string) { return r.openStreams() == 0, "the stream is open" })
	r.Server.Resume()
	b.click("[data-go-on]")
	b.sees("2 messages match")
	redistest.Want(t, "rows", b.count("#hits tr"), 2)
}
