package browser

import (
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Of two viewers who change the same thing, the second one must be told, and must not undo the change of the first one.
func TestTheSecondOfTwoViewersIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "order-1", "hello", bridge.In(time.Hour))
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", "order-2")
	nightly := bridge.Recurrence{Queue: "orders", Name: "nightly", Cron: "@daily"}
	_, err := r.op.Recur(t.Context(), nightly)
	must(t, err)
	first, second := r.browser(), r.browser()
	secret := r.token(access.Verbs())
	for _, b := range []*browser{first, second} {
		b.expects("400", "404", "409")
		b.logInWith(secret)
	}

	second.open("queue?queue=orders&tab=settings")
	first.open("queue?queue=orders&tab=settings")
	first.fill("#field-rate", "300/m")
	first.click("form.settings button.primary")
	first.click(`form[action="do-queue-settings"] button.primary`)
	redistest.Want(t, "rate", r.policy().Rate, "300/m")
	second.fill("#field-rate", "7/s")
	second.click("form.settings button.primary")
	second.sees("Somebody else has changed settings")
	second.looks("queue-settings-meanwhile")
	other := bridge.Rate("9/s")
	must(t, r.op.WritePolicy(t.Context(), "orders", "", admin.PolicyUpdate{Rate: &other}))
	second.click(`form[action="do-queue-settings"] button.primary`)
	second.sees("somebody else has changed rate meanwhile")
	redistest.Want(t, "rate after the second viewer", r.policy().Rate, "9/s")

	second.open("recurrence-edit?queue=orders&edit=nightly")
	nightly.Cron = "@hourly"
	_, err = r.op.Recur(t.Context(), nightly)
	must(t, err)
	second.fill("#field-cron", "@weekly")
	second.click(`form[action="do-recurrence-save"] button.primary`)
	second.sees("somebody has changed the recurrence meanwhile")
	stored, err := r.op.Recurrence(t.Context(), "orders", "nightly")
	must(t, err)
	redistest.Want(t, "expression", stored.Spec.Cron, "@hourly")

	second.open("message?queue=orders&id=order-2&do=purge&letter=" + r.placeIn("orders", "order-2").Letter)
	second.fill("#field-confirm", "purge")
	first.open("message?queue=orders&id=order-2")
	first.click(`form[action="do-message-redrive"] button`)
	first.sees("Redriven: order-2")
	second.click(`form[action="do-message-purge"] button.danger`)
	second.sees("somebody redrove or purged it before")

	second.open("message?queue=orders&id=order-1&do=cancel")
	first.open("message?queue=orders&id=order-1&do=cancel")
	first.click(`form[action="do-message-cancel"] button.danger`)
	first.sees("Cancelled: order-1")
	second.click(`form[action="do-message-cancel"] button.danger`)
	second.sees("This was refused")
	second.looks("message-refused")
}
