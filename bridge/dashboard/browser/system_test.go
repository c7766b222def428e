package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// target returns the only callback of the queue "orders".
func (r *rig) target() admin.PushState {
	r.T.Helper()
	all, err := r.op.PushTargets(r.T.Context(), "orders")
	if err != nil || len(all) != 1 {
		r.T.Fatalf("%d callbacks, want 1: %v", len(all), err)
	}
	return all[0]
}

// Each action on the page of callbacks must have its effect in Redis, and a wrong target must be refused.
func TestCallbacksInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.expects("400")
	b.logIn(access.Verbs()...)
	b.view("callbacks-empty", "callbacks", "No messages are posted")
	b.fill("#field-queue", "orders")
	b.fill("#field-group", "partner")
	b.fill("#field-url", "http://example.com/hook")
	b.click(`form[action="do-set-callback"] button.primary`)
	b.sees("This was refused")
	b.looks("callbacks-refused")
	b.fill("#field-url", "https://example.com/hook")
	b.click(`form[action="do-set-callback"] button.primary`)
	b.sees("new signing key")
	b.looks("callbacks-key")
	redistest.Want(t, "URL", r.target().URL, "https://example.com/hook")
	b.view("callbacks", "callbacks", "example.com")
	b.click(`a[href*="edit=1"]`)
	b.looks("callbacks-edit")
	b.fill("#field-timeout", "7s")
	b.click(`form[action="do-set-callback"] button.primary`)
	b.sees("The target was changed")
	redistest.Want(t, "timeout", r.target().Timeout, 7*time.Second)
	more := func(action string) {
		t.Helper()
		b.click(`[data-opens="more-0"]`)
		b.click(`#more-0 form[action="` + action + `"] button`)
	}
	more("do-rotate-key")
	b.sees("new signing key")
	redistest.Want(t, "keys", r.target().KeyCount, 2)
	b.click(`[data-opens="more-0"]`)
	b.looks("callbacks-more")
	b.press("Escape")
	more("do-drop-key")
	b.sees("signed with the newest key alone")
	redistest.Want(t, "keys after one was dropped", r.target().KeyCount, 1)
	more("do-remove-callback")
	b.sees("The target was removed")
	all, err := r.op.PushTargets(t.Context(), "orders")
	must(t, err)
	redistest.Want(t, "callbacks at the end", len(all), 0)
}

// A new token must log in with its rights alone, and a removed one must log in no more.
func TestTokensInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	r.send("mails", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.expects("400")
	b.logIn(access.Verbs()...)
	b.view("tokens", "tokens", "yours")
	add := func(days string) {
		t.Helper()
		b.fill("#field-token", "partner")
		b.fill("#field-queue", "orders")
		b.fill("#field-days", days)
		if b.count(`input[value="inspect"]:checked`) == 0 {
			b.click(`input[value="inspect"]`)
		}
		b.click(`form[action="do-add-token"] button.primary`)
	}
	add("0")
	b.sees("must be a whole number")
	b.looks("tokens-refused")
	add("7")
	b.sees("partner was added")
	b.looks("tokens-secret")
	secret := b.text("#secret")
	stored, err := r.op.Tokens(t.Context())
	must(t, err)
	for _, one := range stored {
		if one.Name == "partner" && (len(one.Queues) != 1 || one.Queues[0] != "orders" || one.Expires.IsZero()) {
			t.Errorf("the stored token is %+v", one)
		}
	}
	partner := r.browser()
	partner.expects("403")
	partner.logInWith(secret)
	partner.sees("orders")
	partner.lacks("mails")
	partner.open("queue?queue=mails")
	partner.sees("Your token does not allow this")
	partner.open("queue?queue=orders")
	partner.sees("Next due")
	b.open("tokens")
	b.eval(`[...document.querySelectorAll("tbody tr")].find((row) => row.innerText.includes("partner")).id =
		"partner"`, nil)
	b.click("#partner [data-opens]")
	b.looks("tokens-remove")
	b.click(`dialog[open] form[action="do-remove-token"] button.danger`)
	b.sees("The token partner was removed")
	stored, err = r.op.Tokens(t.Context())
	must(t, err)
	for _, one := range stored {
		if one.Name == "partner" {
			t.Error("the token is still in Redis")
		}
	}
	partner.expects("401")
	partner.sees("Make a token") // the open page leads to the login by itself
}

// An examination must show a defect, and its repair must mend the data in Redis.
func TestExaminationAndRepairInABrowser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.view("servers", "servers", "Append-only file")
	r.Do("HDEL", r.Prefix+":queues", "orders") // no bridge would find the queue
	b.click(`form[action="do-examine"] button`)
	b.sees("A repair:")
	b.looks("servers-report")
	b.click(`form[action="do-mend"] button`)
	b.sees("An examination shows what remains.")
	b.looks("servers-repairs")
	queues, err := r.op.Queues(t.Context())
	must(t, err)
	redistest.Want(t, "queues", strings.Join(queues, " "), "orders")
}
