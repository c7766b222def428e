package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// Every page and every action must refuse a viewer without a token, and a token that does not allow it.
func TestEveryRouteEnforcesTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), "other", []byte("p"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	stranger := r.stranger()
	consumer := r.viewer([]access.Verb{access.Consume}, "other")
	elsewhere := r.viewer([]access.Verb{access.Inspect, access.Operate, access.Publish}, "mine")
	for _, p := range pages {
		if _, text := stranger.get(p.path); !strings.Contains(text, `id="token"`) {
			t.Errorf("page %q shows a stranger something else than the login:\n%s", p.path, text)
		}
		for _, v := range []*viewer{consumer, elsewhere} {
			status, text := v.get(p.path + "?queue=other&id=x")
			redistest.Want(t, "page "+p.path+" of a queue that the token may not see", status, http.StatusForbidden)
			if strings.Contains(text, "other\"") {
				t.Errorf("page %q shows a queue that the token may not see:\n%s", p.path, text)
			}
		}
	}
	for _, one := range routes {
		for name, v := range map[string]*viewer{"stranger": stranger, "token of another queue": elsewhere} {
			var status int
			var text string
			if one.method == http.MethodGet {
				status, text = v.get(one.path + "?queue=other&id=x")
			} else {
				status, text = v.post(one.path, url.Values{"queue": {"other"}, "id": {"x"}})
			}
			if status != http.StatusForbidden && status != http.StatusUnauthorized && !strings.Contains(text, `id="token"`) {
				t.Errorf("route %s answers a %s: %d\n%s", one.path, name, status, text)
			}
		}
	}
	inspector := r.viewer([]access.Verb{access.Inspect}, "*")
	for _, a := range actions {
		form := url.Values{"queue": {"other"}, "id": {"x"}}
		if _, text := stranger.post(a.path, form); !strings.Contains(text, `id="token"`) {
			t.Errorf("action %s answers a stranger:\n%s", a.path, text)
		}
		refused := []*viewer{consumer, elsewhere}
		if !slices.Contains(a.verbs, access.Inspect) {
			refused = append(refused, inspector)
		}
		for _, v := range refused {
			status, _ := v.post(a.path, form)
			redistest.Want(t, "action "+a.path+" that the token does not allow", status, http.StatusForbidden)
		}
	}
}

// A read-only dashboard must refuse every action, even to a token that may do everything.
func TestReadOnlyRefusesEveryAction(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(cfg *Config) { cfg.ReadOnly = true })
	v := r.viewer(access.Verbs(), "*")
	for _, a := range actions {
		if slices.Contains(a.verbs, access.Inspect) { // it changes nothing
			continue
		}
		status, _ := v.post(a.path, url.Values{"queue": {"q"}, "id": {"x"}})
		redistest.Want(t, "action "+a.path, status, http.StatusForbidden)
	}
}

// A change must be a POST of the page's own origin: no GET, and no form of another site.
func TestGetChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	for _, a := range actions {
		status, text := v.get(a.path + "?queue=q&id=x")
		if isPage := status == http.StatusOK && a.form != ""; !isPage && status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d\n%s", a.path, status, text)
		}
		for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://elsewhere.example"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, v.base+a.path,
				strings.NewReader("queue=q&id=x"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set(header, value)
			status, _ := v.text(v.http.Do(req))
			redistest.Want(t, "POST "+a.path+" with "+header, status, http.StatusForbidden)
		}
	}
	redistest.Want(t, "audited changes", r.log.Count("action=dashboard.do-"), 0)
}

// Every answer must forbid scripts of others, frames and guesses about its type.
func TestEveryAnswerHasItsHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, path := range []string{"", "login", "assets/app.js", "nowhere", "live-overview", "../x", "assets/../login"} {
		res, err := r.stranger().http.Get(r.server.URL + "/ops/queues/" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		for header, want := range map[string]string{
			"Content-Security-Policy": contentPolicy, "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		} {
			redistest.Want(t, path+": "+header, res.Header.Get(header), want)
		}
	}
	if strings.Contains(contentPolicy, "unsafe") {
		t.Error("the policy allows something unsafe")
	}
}

// The dashboard must work below any path, also without the slash at its end.
func TestRelativeAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	v.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := v.http.Get(r.server.URL + "/ops/queues")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	redistest.Want(t, "status without the slash", res.StatusCode, http.StatusTemporaryRedirect)
	_, text := v.get("")
	for _, attribute := range []string{"href", "src", "action"} {
		if strings.Contains(text, attribute+`="/`) {
			t.Errorf("the page has an absolute address in %s:\n%s", attribute, text)
		}
	}
}
