package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// attack is markup that runs a script if a page holds it unescaped, also inside of an attribute, a script or a comment.
const attack = `"'--></script></title></textarea><script>alert(1)</script><p hx-get=x onerror=alert(1)>` +
	`</hx-partial><hx-partial>{{.}}`

// Text of a producer must reach each page as text. The test puts an attack into each field that a producer, a worker or
// an address can write, and looks for its elements in the parsed pages.
func TestHostileTextsAreText(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	queue := r.Queue
	options := []bridge.Option{
		bridge.WithID(attack), bridge.Header(attack, attack), bridge.Key("key " + attack), bridge.MaxAttempts(1),
	}
	payload, err := json.Marshal(map[string]string{attack: attack})
	if err != nil {
		t.Fatal(err)
	}
	// One message stays scheduled, one is held by a worker, and one is dead.
	for i, group := range []string{"", attack, "closer"} {
		id := attack + strings.Repeat("x", i)
		own := append(options, bridge.WithID(id), bridge.Key(id))
		if group == "" {
			own = append(own, bridge.In(time.Hour))
		}
		if _, err := r.client.Schedule(t.Context(), queue, payload, own...); err != nil {
			t.Fatal(err)
		}
	}
	r.Groups("closer", attack)
	if err := r.op.MakeReady(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	r.Take(attack, attack, 1)
	worker, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: &bridge.Redis{Client: r.Client, Blocking: r.Blocking}, Prefix: r.Prefix, Queue: queue, Group: "closer",
		Handler: func(context.Context, *bridge.Message) error { return errors.New(attack) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		n, err := r.op.DeadLetters().Count(t.Context(), queue, admin.LetterFilter{Group: "closer"})
		return n == 2, fmt.Sprint(n, err)
	})
	stop()
	<-ended
	if _, err := r.op.AddToken(t.Context(), access.Token{Name: "x", Verbs: access.Verbs(), Queues: []string{"*"},
		Description: attack}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.op.Recur(t.Context(), bridge.Recurrence{Queue: queue, Name: attack, Every: time.Hour,
		Payload: payload, Headers: map[string]string{attack: attack}}); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(access.Verbs(), "*")
	query := url.Values{"queue": {queue}, "group": {attack}, "id": {attack}, "q": {attack}, "text": {attack},
		"reason": {attack}, "error": {attack}, "name": {attack}, "filter": {attack}, "sort": {attack}, "tab": {attack}}
	addresses := []string{"?" + query.Encode(), "login?next=" + url.QueryEscape(attack), url.PathEscape(attack)}
	for _, p := range pages {
		addresses = append(addresses, p.path, p.path+"?queue="+queue, p.path+"?"+query.Encode())
		for _, tab := range []string{"due", "consumers", "waits", "settings", "create", "partitions", "letters"} {
			query.Set("tab", tab)
			addresses = append(addresses, p.path+"?"+query.Encode())
		}
	}
	for _, id := range []string{attack, attack + "x", attack + "xx"} {
		addresses = append(addresses, "message?queue="+queue+"&id="+url.QueryEscape(id))
	}
	seen := 0
	for _, address := range addresses {
		status, text := v.get(address)
		if status >= http.StatusInternalServerError {
			t.Errorf("%s: %d\n%s", address, status, text)
		}
		seen += strings.Count(text, "alert(1)")
		checkMarkup(t, address, text)
	}
	if seen < 50 {
		t.Errorf("the pages hold the text of the attack %d times, so the test proves little", seen)
	}
}

// checkMarkup finds elements and attributes that no page of the dashboard has.
func checkMarkup(t *testing.T, address, text string) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader([]byte(text)))
	if err != nil {
		t.Errorf("%s: %v", address, err)
		return
	}
	for node := range root.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		source := ""
		for _, a := range node.Attr {
			if strings.HasPrefix(a.Key, "on") || strings.Contains(a.Key, "hx-") || a.Key == "style" {
				t.Errorf("%s: <%s> has the attribute %s=%q", address, node.Data, a.Key, a.Val)
			}
			if a.Key == "src" || a.Key == "href" {
				source = a.Val
				if strings.HasPrefix(a.Val, "javascript:") || strings.HasPrefix(a.Val, "//") || a.Val == "x" {
					t.Errorf("%s: <%s> leads to %q", address, node.Data, a.Val)
				}
			}
		}
		isOwn := strings.HasPrefix(source, "assets/")
		if node.Data == "script" && (!isOwn || node.FirstChild != nil) || node.Data == "img" && !isOwn ||
			node.Data == "iframe" || node.Data == "hx-partial" || node.Data == "object" || node.Data == "base" {
			t.Errorf("%s: the page has the element <%s> with the source %q", address, node.Data, source)
		}
	}
}
