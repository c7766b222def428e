package browser

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// order is a payload with a number that a script would round.
const order = `{"order":12345678901234567890,"customer":{"name":"Ångström & Co","vip":true},` +
	`"lines":[{"sku":"A-1","price":19.90},{"sku":"B-7","price":5.00}],"note":null}`

// messagePage returns the address of the page of a message in the rig's queue.
func (r *rig) messagePage(id string) string { return "message?queue=" + r.Queue + "&id=" + id }

// place returns the only place of a message in the rig's queue.
func (r *rig) place(id string) admin.Sighting {
	r.T.Helper()
	return r.placeIn(r.Queue, id)
}

// The page of a message has no violation of accessibility and fits the window, in each state and with each form.
func TestMessagePageIsAccessible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingHistoryAge: "3600000"})
	r.send(r.Queue, "order-42", order, bridge.In(3*time.Hour), bridge.Header("tenant", "acme"), bridge.Key("customer-7"))
	r.send(r.Queue, "bytes", "\x00\xff\x10 binary", bridge.In(time.Hour))
	longError := "the partner answered 503 to https://partner.example/" + strings.Repeat("x", 300)
	r.Kill("mailer", lua.ReasonMaxAttempts, longError, "order-41")
	b := r.browser()
	b.logIn(access.Verbs()...)
	for _, c := range []struct{ name, page, text string }{
		{"message-scheduled", r.messagePage("order-42"), "waits for its time"},
		{"message-dead", r.messagePage("order-41"), "a dead letter since"},
		{"message-bytes", r.messagePage("bytes"), "Copy as base64"},
		{"message-nowhere", r.messagePage("order-40"), "The message is in none of them"},
		{"message-move", r.messagePage("order-42") + "&do=move", "New due time"},
		{"message-cancel", r.messagePage("order-42") + "&do=cancel", "It will not be delivered"},
		{"message-expire", r.messagePage("order-42") + "&do=expire", "makes it a dead letter"},
		{"message-purge", r.messagePage("order-41") + "&do=purge&letter=" + r.place("order-41").Letter, "for ever"},
		{"message-form", "message", "Type the ID of a message"},
	} {
		b.view(c.name, c.page, c.text)
	}
}

// The page follows a message by itself until it is done, and leaves alone what the viewer has unfolded.
func TestMessagePageFollowsAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingHistoryAge: "3600000"})
	goOn := make(chan struct{})
	r.bridge()
	r.worker(r.Queue, "mailer", func(context.Context, *bridge.Message) error {
		<-goOn
		return nil
	})
	r.send(r.Queue, "order-42", order, bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Verbs()...)
	b.open(r.messagePage("order-42"))
	b.sees("waits for its time")
	b.click(".json details details summary") // folds the customer
	b.lacks("Ångström")
	other := r.browser()
	other.logIn(access.Verbs()...)
	other.open(r.messagePage("order-42"))
	other.click(`form[action="do-message-move"] button`)
	other.sees("order-42 is due now.")
	b.sees("held by consumer")
	b.sees("Moved from")
	b.lacks("Ångström")
	close(goOn)
	b.sees("acknowledged by mailer at")
	b.sees("Refresh")
	r.streamsAre(0)
}

// The date picker is in the viewer's zone, and Redis gets the exact time.
func TestMessagePageReschedulesInTheZoneOfTheViewer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send(r.Queue, "order-42", order, bridge.At(time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)))
	b := r.browser()
	b.run(emulation.SetTimezoneOverride("Asia/Kolkata"))
	b.logIn(access.Inspect, access.Publish)
	b.open(r.messagePage("order-42"))
	b.click(`a[href*="do=move"]`)
	b.sees("New due time (Asia/") // Chromium names the zone Asia/Calcutta
	var shown string
	b.eval(`document.querySelector("#field-local").value`, &shown)
	redistest.Want(t, "the field at first", shown, "2100-01-02T08:34:05")
	b.set("#field-local", "2100-06-07T08:09:10")
	b.click(`form[action="do-message-move"].chosen button`)
	b.sees("Moved: order-42 is due at 2100-06-07 08:09:10 IST.")
	redistest.Want(t, "due time", r.place("order-42").Due.UTC().Format(time.RFC3339), "2100-06-07T02:39:10Z")
}

// A dead letter is purged with the keyboard alone, and only after its word is typed.
func TestMessagePagePurgesByKeyboard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Kill("mailer", lua.ReasonMaxAttempts, "no route", "order-41")
	b := r.browser()
	b.logIn(access.Operate)
	b.open(r.messagePage("order-41"))
	b.sees("Purge…")
	b.eval(`document.querySelector('a[href*="do=purge"]').focus()`, nil)
	b.enter()
	b.sees("for ever")
	disabled := func(want bool) {
		t.Helper()
		b.until(func() (bool, string) {
			is := b.count(`form[action="do-message-purge"] button:disabled`) == 1
			return is == want, fmt.Sprint("the button is disabled: ", is)
		})
	}
	disabled(true)
	b.until(func() (bool, string) {
		return b.count("input[data-confirms]:focus") == 1, "the field has no focus"
	})
	for _, letter := range "purge" {
		b.press(string(letter))
	}
	disabled(false)
	b.enter()
	b.sees("Purged: the dead letter of order-41 is deleted.")
	redistest.Want(t, "dead letters", r.Length(r.Keys.Dead), int64(0))
}

// A message is cancelled, expired and redriven with the mouse, each with its effect in Redis.
func TestMessagePageCancelsExpiresAndRedrives(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Kill("mailer", lua.ReasonMaxAttempts, "no route", "order-41")
	r.send(r.Queue, "order-42", order, bridge.In(time.Hour))
	r.send(r.Queue, "order-43", order, bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Operate)
	b.open(r.messagePage("order-42"))
	b.click(`a[href*="do=cancel"]`)
	b.click(`form[action="do-message-cancel"] button.danger`)
	b.sees("Cancelled: order-42 will not be delivered.")
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), int64(1))
	b.open(r.messagePage("order-43"))
	b.click(`a[href*="do=expire"]`)
	b.click(`form[action="do-message-expire"] button.danger`)
	b.sees("Expired: a bridge makes order-43 a dead letter")
	if at := r.place("order-43").Expires; at.IsZero() || at.After(time.Now().Add(time.Minute)) {
		t.Errorf("order-43 expires at %v", at)
	}
	b.open(r.messagePage("order-41"))
	b.click(`form[action="do-message-redrive"] button`)
	b.sees("Redriven: order-41 is delivered again")
	redistest.Want(t, "dead letters", r.Length(r.Keys.Dead), int64(0))
	redistest.Want(t, "order-41 is dead", r.place("order-41").Letter, "")
}

// A payload of 5 MiB is shown in part, so that its page is light. It is copied and downloaded whole.
func TestALargePayloadIsTakenWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	payload := strings.Repeat("0123456789 é\n", 400_000)
	r.send(r.Queue, "large", payload, bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.ofBrowser(func(ctx context.Context) error {
		return cdpbrowser.GrantPermissions([]cdpbrowser.PermissionType{
			cdpbrowser.PermissionTypeClipboardReadWrite, cdpbrowser.PermissionTypeClipboardSanitizedWrite,
		}).WithBrowserContextID(b.cookies).Do(ctx)
	})
	b.view("message-large", r.messagePage("large"), "64.0 KiB of 5.3 MiB shown")
	file := b.downloads(`section.payload a[href^="payload?"]`)
	redistest.Want(t, "the download is the payload", string(file) == payload, true)
	// What the clipboard gets is recorded instead of read back, because only the tab in front may read it. The button says
	// for a moment only that it has copied, so that is recorded, too.
	b.eval(`navigator.clipboard.write = async (items) => {
		const text = await (await items[0].getType('text/plain')).arrayBuffer();
		const sum = new Uint8Array(await crypto.subtle.digest('SHA-256', text));
		window.copied = [...sum].map((byte) => byte.toString(16).padStart(2, '0')).join('');
	};
	window.said = [];
	const button = document.querySelector("[data-copies-from]");
	new MutationObserver(() => said.push(button.textContent)).observe(button, {childList: true})`, nil)
	b.click("[data-copies-from]")
	var copied string
	b.until(func() (bool, string) {
		var said string
		b.eval(`said.join()`, &said)
		return strings.HasPrefix(said, "Copied"), "the button says " + said
	})
	b.eval("window.copied", &copied)
	sum := sha256.Sum256([]byte(payload))
	redistest.Want(t, "digest of the copy", copied, hex.EncodeToString(sum[:]))
}

// What a producer wrote is never a script: not on the page, not in its updates, and not as plain text.
func TestMessagePageRunsNoScriptOfAProducer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const hostile = `<script>document.title="taken"</script><img src=x onerror='document.title="taken"'></pre>`
	id := "id" + hostile
	r.send(r.Queue, id, hostile, bridge.In(time.Hour), bridge.Header("h"+hostile, hostile), bridge.Key(hostile))
	b := r.browser()
	b.logIn(access.Verbs()...)
	query := fmt.Sprintf("encodeURIComponent(%q)", id)
	var encoded string
	b.eval(query, &encoded)
	b.open(r.messagePage(encoded))
	b.sees("waits for its time")
	b.sees(hostile)
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(2*time.Hour).UnixMilli()), id)
	r.Do("HSET", r.Keys.Meta, id, `{"id":"x","error":"<script>document.title='taken'</script>"}`)
	b.sees("Last error: <script>")
	var title, plain string
	b.eval("document.title", &title)
	redistest.Want(t, "title", title, id+" · duestream")
	b.eval(`document.querySelector('a[href*="as=text"]').href`, &plain)
	b.follow(func() { b.navigate(plain) })
	b.sees(hostile)
	b.eval("document.title + document.contentType", &title)
	redistest.Want(t, "title and type of the plain text", title, "text/plain")
}

// If a message is replaced while its page is shown, the page says that it shows the old payload.
func TestMessagePageSaysThatThePayloadHasChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send(r.Queue, "order-42", "the old payload", bridge.In(time.Hour))
	b := r.browser()
	b.logIn(access.Inspect)
	b.open(r.messagePage("order-42"))
	b.sees("the old payload")
	r.streamsAre(1)
	r.send(r.Queue, "order-42", "the new payload", bridge.In(time.Hour), bridge.Replace)
	b.sees("The payload has changed since.")
	b.click("#payload-changed a")
	b.sees("the new payload")
	b.lacks("The payload has changed since.")
}
