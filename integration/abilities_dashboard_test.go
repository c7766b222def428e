package integration

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/redistest"
)

// viewer is a browser at a dashboard that runs as the user.
type viewer struct {
	*asUser
	base    string
	browser *http.Client
}

// inDashboard runs a dashboard as the user, and logs in with a token that allows everything.
func inDashboard(a *asUser) *viewer {
	store, err := access.Open(access.Config{Client: a.redis.Client, Prefix: a.prefix})
	a.must(err)
	d, err := dashboard.New(dashboard.Config{Redis: a.redis, Prefix: a.prefix, Access: store})
	a.must(err)
	server := httptest.NewServer(d)
	a.t.Cleanup(func() {
		_ = d.Close()
		server.Close()
	})
	cookies, err := cookiejar.New(nil)
	a.must(err)
	secret, err := a.op.AddToken(a.t.Context(), admin.Token{Name: a.login, Verbs: access.Verbs(), Queues: []string{"*"},
		Rate: "1000/s"})
	a.must(err)
	v := &viewer{a, server.URL + "/", &http.Client{Jar: cookies}}
	v.do("login", "token", secret)
	return v
}

// see opens a page, which must succeed, and returns its text.
func (v *viewer) see(page string) string {
	v.t.Helper()
	res, err := v.browser.Get(v.base + strings.ReplaceAll(page, "{q}", url.QueryEscape(v.queue)))
	return v.read(page, res, err)
}

// do sends a form, given as names and values in turn. It must succeed.
func (v *viewer) do(action string, form ...string) {
	v.t.Helper()
	fields := url.Values{}
	for i := 0; i < len(form); i += 2 {
		fields.Set(form[i], form[i+1])
	}
	res, err := v.browser.PostForm(v.base+action, fields)
	v.read(action, res, err)
}

func (v *viewer) read(page string, res *http.Response, err error) string {
	v.t.Helper()
	v.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	v.must(err)
	if res.StatusCode != http.StatusOK {
		v.t.Errorf("%s: %d\n%s", page, res.StatusCode, text)
	}
	return string(text)
}

func dashboardLooks(a *asUser) {
	a.optional = append(a.optional, "config|get", "function|list", "fcall")
	a.makeDeadLetters("d")
	v := inDashboard(a)
	for _, page := range []string{"", "queue?queue={q}", "queue?queue={q}&tab=due", "queue?queue={q}&tab=consumers",
		"queue?queue={q}&tab=latency", "queue?queue={q}&tab=settings", "message?queue={q}&id=d", "search?q=d",
		"search-stream?q=d", "dead", "dead?queue={q}", "dead-letters?queue={q}", "recurrences", "callbacks", "tokens",
		"servers"} {
		v.see(page)
	}
	v.do("do-examine")
	a.eventually(func() (bool, string) {
		text := v.see("servers")
		return strings.Contains(text, ", examined "), "the server is being examined"
	})
}

func dashboardChanges(a *asUser) {
	v := inDashboard(a)
	v.do("do-queue-pause", "queue", a.queue)
	v.do("do-queue-resume", "queue", a.queue)
	a.feedLater("m")
	v.do("do-message-cancel", "queue", a.queue, "id", "m")
	a.eventually(func() (bool, string) {
		text := v.see("message?queue={q}&id=m")
		return !strings.Contains(text, "do-message-cancel"), "the message is there"
	})
	v.do("do-add-token", "token", a.login+"-x", "verb", "inspect", "queue", "*", "rate", "1000/s")
	v.do("do-remove-token", "token", a.login+"-x")
	tokens, err := a.op.Tokens(a.t.Context())
	a.must(err)
	for _, one := range tokens {
		redistest.Want(a.t, "the removed token is there", one.Name == a.login+"-x", false)
	}
}
