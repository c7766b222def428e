package browser

import (
	"net/url"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// hostile changes the title of the page if the page treats it as markup.
const hostile = `"'--></title></textarea></template><script>document.title="taken"</script>` +
	`<img src=x onerror='document.title="taken"'></pre>`

// The text of a producer must not run as a script on any page: in a list, in a form, or in hits that a stream adds. A
// page that tries to run it violates the content policy, which fails the test at its end.
func TestNoPageRunsAScriptOfAProducer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.send("orders", "1"+hostile, hostile, bridge.In(time.Hour), bridge.Header("h"+hostile, hostile), bridge.Key(hostile))
	r.dead("orders", "g"+hostile, lua.ReasonMaxAttempts, hostile, "2"+hostile)
	_, err := r.op.Recur(t.Context(), bridge.Recurrence{Queue: "orders", Name: "n" + hostile, Every: time.Hour,
		Owner: hostile, Payload: []byte(hostile), Headers: map[string]string{"h" + hostile: hostile}})
	must(t, err)
	_, err = r.op.AddToken(t.Context(), access.Token{Name: "hostile", Verbs: []access.Verb{access.Inspect},
		Queues: []string{"*"}, Description: hostile})
	must(t, err)
	b := r.browser()
	b.logIn(access.Verbs()...)
	text, letter := url.QueryEscape(hostile), "&letter="+r.placeIn("orders", "2"+hostile).Letter
	for _, address := range []string{
		"?filter=" + text, "queue?queue=orders", "queue?queue=orders&tab=consumers", "queue?queue=orders&tab=due",
		"queue?queue=orders&tab=create&from=1" + text, "message?queue=orders&id=1" + text, "message?queue=orders&id=2" + text,
		"dead", "dead?queue=orders&group=g" + text, "dead-letters?queue=orders", "dead-letters?queue=orders&error=" + text,
		"dead-letter?queue=orders" + letter, "dead-redrive?queue=orders" + letter, "dead-purge?queue=orders" + letter,
		"dead-edit?queue=orders" + letter, "recurrences", "recurrence?queue=orders&name=n" + text,
		"recurrence-edit?queue=orders&edit=n" + text, "callbacks", "tokens", "servers", "search?q=" + text,
		"search?error=script",
	} {
		b.open(address)
		if address[:4] == "sear" {
			b.sees("All was looked at")
			redistest.Want(t, "rows of hits", b.count("#hits tr") > 0, true)
		}
		var title string
		b.eval(`document.title + document.querySelectorAll("body script, img[src=x]").length`, &title)
		if title == "" || title[:5] == "taken" || title[len(title)-1] != '0' {
			t.Errorf("%s: the page is taken: %s", address, title)
		}
	}
	redistest.Want(t, "queues", r.Number("HLEN", r.Prefix+":queues"), 1)
}
