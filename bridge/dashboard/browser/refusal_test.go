package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A login must be refused with a wrong token, and where others could read the token.
func TestLoginsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.browser()
	b.expects("401", "403")
	b.open("login")
	b.fill("#token", "wrong")
	b.click("#login button")
	b.sees("This token is not valid")
	b.looks("login-refused")
	b.open("tokens")
	b.isAt("login?next=tokens")
	plain := httptest.NewServer(proxy(t, strings.TrimSuffix(r.direct, path)))
	t.Cleanup(plain.Close)
	b.navigate(plain.URL + path + "login")
	b.sees("without encryption")
	b.looks("login-unencrypted")
	redistest.Want(t, "fields for a token", b.count("input"), 0)
}

// pagesOf are addresses of pages with all kinds of buttons, for the fixture of withEverything.
var pagesOf = []string{"", "queue?queue=orders", "queue?queue=orders&tab=settings", "queue?queue=orders&tab=partitions",
	"message?queue=orders&id=order-1", "message?queue=orders&id=order-2", "search?q=order", "dead",
	"dead-letters?queue=orders", "recurrences", "recurrence?queue=orders&name=nightly", "callbacks", "tokens", "servers"}

// withEverything adds a scheduled message order-1, a dead letter order-2, a recurrence and a callback to "orders".
func (r *rig) withEverything() {
	r.T.Helper()
	r.send("orders", "order-1", "hello", bridge.In(time.Hour))
	r.dead("orders", "mailer", lua.ReasonMaxAttempts, "503", "order-2")
	_, err := r.op.Recur(r.T.Context(), bridge.Recurrence{Queue: "orders", Name: "nightly", Cron: "@daily"})
	must(r.T, err)
	_, err = r.op.SetPushTarget(r.T.Context(), admin.PushTarget{Queue: "orders", Group: "partner",
		URL: "https://example.com/hook"})
	must(r.T, err)
}

// forge sends a form that the page does not have.
func (b *browser) forge(action string, fields map[string]string) {
	b.t.Helper()
	b.follow(func() {
		b.eval(fmt.Sprintf(`((form, fields) => {
			form.method = "post";
			form.action = %q;
			for (const [name, value] of Object.entries(fields)) {
				const field = document.createElement("input");
				field.type = "hidden";
				field.name = name;
				field.value = value;
				form.append(field);
			}
			document.body.append(form);
			setTimeout(() => form.submit());
		})(document.createElement("form"), %s)`, action, inJSON(fields)), nil)
	})
}

// A reader must see no button that would be refused, and a forged form must change nothing. The same holds for an
// operator while the dashboard is read-only.
func TestAReaderSeesNoButtonsAndChangesNothing(t *testing.T) {
	t.Parallel()
	for name, verbs := range map[string][]access.Verb{"reader": {access.Inspect}, "read-only": access.Verbs()} {
		r := newRigOn(t, redistest.Shared(t), func(c *dashboard.Config) { c.ReadOnly = name == "read-only" })
		r.withEverything()
		b := r.browser()
		b.expects("403", "404")
		b.logIn(verbs...)
		for _, address := range pagesOf {
			b.open(address)
			if n := b.count(`main form[method="post"]:not([action]), main form[action^="do-"]:not([action="do-examine"])` +
				`:not(#act), main [formaction^="do-"]`); n > 0 {
				t.Errorf("%s: %s has %d forms for changes", name, address, n)
			}
			redistest.Want(t, name+": choices of a change on "+address, b.count("#field-kind"), 0)
		}
		b.forge("do-queue-pause", map[string]string{"queue": "orders"})
		if name == "reader" {
			b.sees("Your token does not allow this")
		} else {
			b.sees("This dashboard is read-only")
		}
		b.looks("failure-" + name)
		redistest.Want(t, name+": paused", r.policy().Held, false)
	}
}

// A token with a rate must be told when it may change something again.
func TestATokenOverItsRateIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	secret, err := r.op.AddToken(t.Context(), access.Token{Name: "slow", Verbs: []access.Verb{access.Operate},
		Queues: []string{"*"}, Rate: "1/h"})
	must(t, err)
	b := r.browser()
	b.expects("429")
	b.logInWith(secret)
	b.open("queue?queue=orders")
	b.click(`button[formaction="do-queue-pause"]`)
	b.sees("orders is paused")
	b.click(`button[formaction="do-queue-resume"]`)
	b.sees("used up its rate")
	redistest.Want(t, "paused", r.policy().Held, true)
}

// A page that is not kept up to date, because there are too many viewers, must say so.
func TestAViewerTooManyIsTold(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, redistest.Shared(t), func(c *dashboard.Config) { c.MaxViewers = 1 })
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	first, second := r.browser(), r.browser()
	first.logIn(access.Inspect)
	first.sees("orders")
	r.streamsAre(1)
	second.logIn(access.Inspect)
	second.sees("This page is not kept up to date")
	second.sees("orders")
	second.looks("overview-full")
}

// A page of another site must not change anything with the viewer's cookie, and must not show the dashboard in a frame.
func TestAnotherSiteChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "m-1", "hello", bridge.In(time.Hour))
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<link rel="icon" href="data:,"><iframe src="%[1]s"></iframe>
			<form method="post" action="%[1]sdo-queue-pause">
			<input name="queue" value="orders"><button>Win</button></form>`, r.stripping)
	}))
	t.Cleanup(other.Close)
	b := r.browser()
	b.expects("403", "frame-ancestors", "X-Frame-Options", "favicon.ico") // the refusal is no page, and names no icon
	b.logIn(access.Operate)
	b.follow(func() { b.navigate(other.URL) })
	var frames *page.FrameTree
	b.run(frameTree(&frames))
	for _, child := range frames.ChildFrames {
		if child.Frame.UnreachableURL == "" {
			t.Errorf("a frame of another site shows %s", child.Frame.URL)
		}
	}
	b.click("button") // the site has the address of this machine, so the browser sends the cookie
	b.sees("cross-origin")
	redistest.Want(t, "paused", r.policy().Held, false)
}
