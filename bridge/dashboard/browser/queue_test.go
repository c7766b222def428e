package browser

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// policy returns the policy of the whole queue "orders".
func (r *rig) policy() bridge.Policy {
	r.T.Helper()
	p, _, err := r.op.ReadPolicy(r.T.Context(), "orders", "")
	must(r.T, err)
	return p
}

// busyQueue fills "orders" with scheduled messages, a message that a worker holds, and a history.
func (r *rig) busyQueue() {
	r.T.Helper()
	r.bridge()
	history := 1000
	must(r.T, r.op.WritePolicy(r.T.Context(), "orders", "", admin.PolicyUpdate{History: &history}))
	held := make(chan struct{})
	r.T.Cleanup(func() { close(held) })
	r.worker("orders", "mailer", func(ctx context.Context, m *bridge.Message) error {
		if m.ID == "held" {
			select {
			case <-held:
			case <-ctx.Done():
			}
		}
		return errors.New("the partner does not answer")
	})
	r.send("orders", "held", "hello")
	for i := range 30 {
		r.send("orders", fmt.Sprint("later-", i), "hello", bridge.In(time.Duration(i*i)*time.Minute))
	}
}

// Each tab that shows a queue has no violation of accessibility and fits the window, with contents and without.
func TestTabsOfAQueueAreAccessible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.busyQueue()
	must(t, r.op.Register(t.Context(), "empty"))
	b := r.browser()
	b.logIn(access.Verbs()...)
	for _, v := range []struct{ queue, tab, text string }{
		{"orders", "consumers", "Held by mailer"}, {"orders", "", "Next due"}, {"orders", "due", "Due times by hour"},
		{"orders", "latency", "orders"}, {"orders", "history", "later-0"},
		{"empty", "", "nothing is scheduled"}, {"empty", "due", "empty"}, {"empty", "consumers", "No group has a consumer"},
		{"empty", "latency", "empty"},
	} {
		b.view("queue-"+v.queue+"-"+v.tab, "queue?queue="+v.queue+"&tab="+v.tab, v.text)
	}
}

// Each tab that changes a queue has no violation of accessibility and fits the window, also before and after a change.
func TestFormsOfAQueueAreAccessible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.busyQueue()
	b := r.browser()
	b.expects("400")
	b.logIn(access.Verbs()...)
	for _, v := range []struct{ name, query, text string }{
		{"settings", "settings", "retry_max"}, {"partitions", "partitions", "Grow to"},
		{"create", "create", "Create the message"}, {"delete", "delete", "Delete orders"},
		{"settings-differences", "settings&change=1&rate=500/s&retry_max=10m", "Differences to save"},
		{"settings-refused", "settings&change=1&rate=fast", "This was refused"},
		{"partitions-confirm", "partitions&partitions=8", "Grow orders from 1 to 8"},
	} {
		b.view("queue-"+v.name, "queue?queue=orders&tab="+v.query, v.text)
	}
}

// The overview follows the queue by itself, and its buttons pause and resume the queue.
func TestAQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(100*time.Minute))
	b, other := r.browser(), r.browser()
	b.logIn(access.Operate)
	b.open("queue?queue=orders")
	b.sees("in 2 hours")
	other.logIn(access.Inspect)
	other.open("queue?queue=orders&tab=settings")
	redistest.Want(t, "buttons of an inspector", other.count("#queue-state button"), 0)
	r.send("orders", "m-2", "hello", bridge.In(time.Minute))
	b.sees("m-2")
	b.sees("Messages per second") // the chart, which needs two looks
	redistest.Want(t, "lines of the chart", b.count(".rates polyline"), 3)
	b.looks("queue-chart")
	b.click(`button[formaction="do-queue-pause"]`)
	b.sees("orders is paused")
	redistest.Want(t, "held", r.policy().Held, true)
	other.counts("#queue-state .badge", 1) // by itself
	b.click(`button[formaction="do-queue-pause-workers"]`)
	b.sees("workers paused")
	redistest.Want(t, "held workers", r.policy().HeldWorkers, true)
	b.click(`button[formaction="do-queue-resume"]`)
	b.sees("orders is resumed")
	redistest.Want(t, "held after resume", r.policy().Held, false)
	other.counts("#queue-state .badge", 0)
}

// The bars of due times list their messages, with the mouse and with the keyboard.
func TestABarListsItsMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "soon", "hello", bridge.In(90*time.Minute))
	r.send("orders", "later", "hello", bridge.In(20*time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.open("queue?queue=orders&tab=due")
	redistest.Want(t, "bars", b.count(".chart .bars a"), 2)
	b.click(".chart .bars a:first-of-type")
	b.sees("1 message due")
	b.sees("soon")
	redistest.Want(t, "rows", b.count("main table.rows tbody tr"), 1)
	b.run(emulation.SetTimezoneOverride("Asia/Tokyo"))
	b.open("queue?queue=orders&tab=due")
	b.open("queue?queue=orders&tab=due&by=day") // the page before has told the zone
	b.sees("Asia/Tokyo")
	b.eval(`document.querySelector(".chart .bars a:last-of-type").focus()`, nil)
	b.enter()
	b.sees("due from")
}

// Settings are saved after the page of differences, and a wrong value stays in its field.
func TestSettingsAreEdited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.expects("400")
	b.logIn(access.Operate)
	b.open("queue?queue=orders&tab=settings")
	b.fill("#field-retry_max", "5x")
	b.fill("#field-rate", "300/m")
	b.click("form.settings button.primary")
	b.sees("must be a duration")
	var typed string
	b.eval(`document.getElementById("field-retry_max").value`, &typed)
	redistest.Want(t, "typed", typed, "5x")
	b.fill("#field-retry_max", "5m")
	b.set("#field-key_failure", "skip")
	b.click("form.settings button.primary")
	b.sees("At most 300 messages become ready per minute.")
	redistest.Want(t, "rate before saving", r.policy().Rate, "")
	b.click(`form[action="do-queue-settings"] button.primary`)
	b.sees("3 settings were changed")
	p := r.policy()
	redistest.Want(t, "rate", p.Rate, "300/m")
	redistest.Want(t, "retry_max", p.RetryMax, 5*time.Minute)
	redistest.Want(t, "key_failure", string(p.KeyFailure), "skip")
}

// A message is created at a time in the viewer's zone, and repeated from its own form.
func TestAMessageIsCreatedAndRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	must(t, r.op.Register(t.Context(), "orders"))
	b := r.browser()
	b.expects("400")
	b.run(emulation.SetTimezoneOverride("America/New_York"))
	b.logIn(access.Inspect, access.Publish)
	b.open("queue?queue=orders&tab=create")
	b.sees("In America/New_York.")
	b.fill("#field-id", "order-42")
	b.set("#field-at", "2031-07-01T12:00:00")
	b.set("#field-kind", "json")
	b.fill("#field-payload", `{"n":`)
	b.click(`form[action="do-queue-create"] button.primary`)
	b.sees("is not JSON")
	b.fill("#field-payload", "{\"n\":\n9007199254740993}")
	b.fill("#field-headers", "trace: 1\nlang: de")
	b.click(`form[action="do-queue-create"] button.primary`)
	b.sees("Message order-42 is scheduled.")
	place := func(id string) admin.Sighting {
		t.Helper()
		found, err := r.op.Find(t.Context(), id, admin.FindOptions{})
		must(t, err)
		return found.Places[0]
	}
	first := place("order-42")
	redistest.Want(t, "payload", string(first.Payload), "{\"n\":\n9007199254740993}")
	redistest.Want(t, "due", first.Due.UTC(), time.Date(2031, 7, 1, 16, 0, 0, 0, time.UTC))
	redistest.Want(t, "headers", len(first.Headers), 2)
	b.open("queue?queue=orders&tab=create&from=order-42")
	b.fill("#field-id", "order-43")
	b.fill("#field-in", "1h")
	b.click(`form[action="do-queue-create"] button.primary`)
	b.sees("Message order-43 is scheduled.")
	redistest.Want(t, "payload of the repetition", string(place("order-43").Payload), string(first.Payload))
}

// A queue grows after a confirmation, and is deleted only after its name was typed.
func TestAQueueGrowsAndIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Operate)
	b.open("queue?queue=orders&tab=partitions")
	b.fill("#field-partitions", "3")
	b.enter()
	b.sees("Grow orders from 1 to 3 partitions?")
	b.click(`form[action="do-queue-grow"] button`)
	b.sees("orders has 3 partitions now")
	counts, err := r.op.Partitions(t.Context(), "orders")
	must(t, err)
	redistest.Want(t, "partitions", counts.Latest(), 3)
	b.expects("409")
	b.open("queue?queue=orders&tab=delete")
	b.fill("#field-confirm", "order")
	var disabled bool
	b.eval(`document.querySelector("button.danger").disabled`, &disabled)
	redistest.Want(t, "the button is disabled", disabled, true)
	b.fill("#field-confirm", "orders")
	b.click(`form[action="do-queue-delete"] button.danger`)
	b.sees("it holds 1 scheduled")
	b.click(`input[name="force"]`)
	b.click(`form[action="do-queue-delete"] button.danger`)
	b.sees("orders was deleted, with 1 scheduled.")
	if err := r.op.CheckKnown(t.Context(), "orders"); !errors.Is(err, admin.ErrNoQueue) {
		t.Errorf("the queue is still there: %v", err)
	}
}
