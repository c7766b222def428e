package dashboard

import (
	"crypto/rand"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a dashboard on a server of its own, with the queues of a prefix.
type rig struct {
	*queuetest.Rig
	dashboard *Dashboard
	server    *httptest.Server
	op        *admin.Admin
	client    *bridge.Client
	log       *queuetest.LogBook // of the dashboard and its audit
}

// newRig starts a dashboard. change may change its configuration; nil changes nothing.
func newRig(t *testing.T, s *redistest.Server, change func(*Config)) *rig {
	t.Helper()
	r := &rig{Rig: queuetest.New(t, s)}
	conn := &bridge.Redis{Client: r.Client}
	var err error
	if r.op, err = admin.New(conn, r.Prefix); err != nil {
		t.Fatal(err)
	}
	if r.client, err = bridge.NewClient(bridge.ClientConfig{Redis: conn, Prefix: r.Prefix}); err != nil {
		t.Fatal(err)
	}
	r.log = &queuetest.LogBook{}
	store, err := access.Open(access.Config{Client: r.Client, Prefix: r.Prefix, Log: r.log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Redis: conn, Prefix: r.Prefix, Access: store, Version: "test", Logger: r.log.Logger()}
	if change != nil {
		change(&cfg)
	}
	if r.dashboard, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.server = httptest.NewServer(http.StripPrefix("/ops/queues", r.dashboard))
	t.Cleanup(func() {
		r.server.Close()
		_ = r.dashboard.Close()
		_ = r.client.Close()
	})
	return r
}

// viewer is a browser that is logged in with a token.
type viewer struct {
	t    *testing.T
	base string
	http *http.Client
}

// viewer adds a token with these verbs on these queues, and logs in with it.
func (r *rig) viewer(verbs []access.Verb, queues ...string) *viewer {
	r.T.Helper()
	name := "viewer-" + rand.Text()
	secret, err := r.op.AddToken(r.T.Context(), access.Token{Name: name, Verbs: verbs, Queues: queues})
	if err != nil {
		r.T.Fatal(err)
	}
	v := r.stranger()
	if status, text := v.post("login", url.Values{"token": {secret}}); status != http.StatusOK ||
		!strings.Contains(text, name) {
		r.T.Fatalf("login: %d\n%s", status, text)
	}
	return v
}

// stranger returns a browser that is not logged in.
func (r *rig) stranger() *viewer {
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.T.Fatal(err)
	}
	return &viewer{t: r.T, base: r.server.URL + "/ops/queues/", http: &http.Client{Jar: jar}}
}

// get returns the status and the text of a page, after redirects.
func (v *viewer) get(page string) (int, string) {
	v.t.Helper()
	return v.text(v.http.Get(v.base + page))
}

// eventuallyShows waits until a page holds a text, and returns the page.
func (v *viewer) eventuallyShows(page, want string) string {
	v.t.Helper()
	var text string
	redistest.Eventually(v.t, time.Minute, func() (bool, string) {
		_, text = v.get(page)
		return strings.Contains(text, want), want + " is not in\n" + text
	})
	return text
}

// post sends a form, and returns the status and the text of the page after redirects.
func (v *viewer) post(page string, form url.Values) (int, string) {
	v.t.Helper()
	return v.text(v.http.PostForm(v.base+page, form))
}

func (v *viewer) text(res *http.Response, err error) (int, string) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}
