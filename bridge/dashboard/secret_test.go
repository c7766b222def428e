package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// answer returns the answer to the form of an action.
func (v *viewer) answer(d *Dashboard, a action, form url.Values) *httptest.ResponseRecorder {
	v.t.Helper()
	req := httptest.NewRequestWithContext(v.t.Context(), http.MethodPost, "/"+a.path, strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	base, err := url.Parse(v.base)
	if err != nil {
		v.t.Fatal(err)
	}
	for _, c := range v.http.Jar.Cookies(base) {
		req.AddCookie(c)
	}
	w := httptest.NewRecorder()
	d.answerAction(w, req, a)
	return w
}

// A change that failed must show no secret, and keep what was typed. Regression: a token that Redis did not store was
// shown as added, with an empty secret.
func TestAFailedChangeShowsNoSecret(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(access.Verbs(), "*")
	form := url.Values{"queue": {r.Queue}, "group": {"typed-group"}, "token": {"typed-name"}}
	full := func(*request) (done, error) {
		return done{shown: &addedToken{"typed-name", ""}}, errors.New("OOM command not allowed")
	}
	operate := []access.Verb{access.Operate}
	add := action{path: "do-add-token", verbs: operate, allQueues: true, form: "tokens", do: full}
	w := v.answer(r.dashboard, add, form)
	contains(t, w.Body.String(), "OOM command not allowed", `value="typed-name"`)
	lacks(t, w.Body.String(), `id="secret"`)
	status, text := v.post("do-rotate-key", form) // there is no such target
	redistest.Want(t, "status of a new key for no target", status, http.StatusNotFound)
	lacks(t, text, `id="secret"`)
	if q := r.request(v); q != nil {
		q.query = form
		if result, err := rotateKey(q); err == nil || result.shown != nil {
			t.Errorf("a new key for no target: %+v, %v", result, err)
		}
	}
}

// A secret that was made must be shown, even if the page around it cannot be read. Regression: the viewer was sent to
// another page, and nobody could use the token.
func TestASecretIsShownAlthoughTheListCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(access.Verbs(), "*")
	for form, shown := range map[string]any{
		"tokens": &addedToken{"name", "the-secret"}, "callbacks": &newKey{r.Queue, "group", "the-secret"},
	} {
		a := action{path: "do-x", verbs: []access.Verb{access.Operate}, allQueues: true, form: form}
		a.do = func(q *request) (done, error) {
			q.limit()() // ends the context, so nothing more can be read
			return done{shown: shown}, nil
		}
		w := v.answer(r.dashboard, a, url.Values{})
		redistest.Want(t, "status of "+form, w.Code, http.StatusOK)
		contains(t, w.Body.String(), `id="secret">the-secret<`, "The list cannot be shown")
	}
	a := action{path: "do-x", verbs: []access.Verb{access.Operate}, allQueues: true, form: "callbacks"}
	a.do = func(q *request) (done, error) {
		q.limit()()
		return done{shown: "a result that the page does not know"}, nil
	}
	w := v.answer(r.dashboard, a, url.Values{})
	contains(t, w.Body.String(), "The change was made, but its result cannot be shown")
	lacks(t, w.Body.String(), "data-retry") // which would repeat the change
	a.form, a.do = "", func(q *request) (done, error) { return done{}, context.DeadlineExceeded }
	w = v.answer(r.dashboard, a, url.Values{})
	contains(t, w.Body.String(), "Redis does not answer")
	lacks(t, w.Body.String(), "data-retry")
}
