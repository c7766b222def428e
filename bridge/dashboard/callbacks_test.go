package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// A target must be added, changed, given a new key and removed on the page, each with its effect in Redis.
func TestCallbacksAreManaged(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, r.Queue)
	form := url.Values{"queue": {r.Queue}, "group": {"partner"}, "url": {"https://example.com/hook?secret=1"},
		"headers": {"X-Api-Key: k1\nX-Region: eu"}, "dead_status": {"404, 422"}, "rate": {"5/s"}, "timeout": {"3s"},
		"networks": {"10.1.0.0/16"}}
	status, text := v.post("do-set-callback", form)
	redistest.Want(t, "status", status, http.StatusOK)
	if !strings.Contains(text, "whsec_") {
		t.Errorf("the new signing key is not shown:\n%s", text)
	}
	targets, err := r.op.PushTargets(t.Context(), r.Queue)
	if err != nil || len(targets) != 1 {
		t.Fatal(targets, err)
	}
	one := targets[0]
	if one.Group != "partner" || one.Timeout != 3*time.Second || one.Rate != "5/s" || len(one.DeadStatus) != 2 ||
		len(one.Networks) != 1 || len(one.Headers) != 2 || one.KeyCount != 1 {
		t.Errorf("stored: %+v", one)
	}
	_, text = v.get("callbacks?edit=1&queue=" + r.Queue + "&group=partner")
	for _, want := range []string{`value="3s"`, `value="404 422"`, `value="10.1.0.0/16"`, "X-Api-Key: \nX-Region: "} {
		if !strings.Contains(text, want) {
			t.Errorf("the form lacks %q:\n%s", want, text)
		}
	}
	for _, secret := range []string{"secret=1", "k1", "whsec_"} {
		if strings.Contains(text, secret) {
			t.Errorf("the page shows the secret %q", secret)
		}
	}
	form.Set("timeout", "7s")
	v.post("do-set-callback", form)
	if _, text = v.post("do-rotate-key", form); !strings.Contains(text, "whsec_") {
		t.Errorf("the second key is not shown:\n%s", text)
	}
	if targets, err = r.op.PushTargets(t.Context(), r.Queue); err != nil || targets[0].KeyCount != 2 ||
		targets[0].Timeout != 7*time.Second {
		t.Errorf("after the change and the new key: %+v, %v", targets, err)
	}
	v.post("do-drop-key", form)
	if targets, err = r.op.PushTargets(t.Context(), r.Queue); err != nil || targets[0].KeyCount != 1 {
		t.Errorf("after the old key was dropped: %+v, %v", targets, err)
	}
	v.post("do-remove-callback", form)
	if targets, err = r.op.PushTargets(t.Context(), r.Queue); err != nil || len(targets) != 0 {
		t.Errorf("after the removal: %+v, %v", targets, err)
	}
}

// A wrong target must be refused beside its field, and nothing must be stored.
func TestWrongCallbacksAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
	for field, value := range map[string]string{
		"url": "http://example.com", "timeout": "fast", "concurrency": "0", "failures": "-2", "networks": "10.1/16",
		"dead_status": "x", "headers": "no colon", "rate": "many", "interval": "-1s", "burst": "x",
	} {
		form := url.Values{"queue": {r.Queue}, "group": {"g"}, "url": {"https://example.com/typed"}}
		form.Set(field, value)
		status, text := v.post("do-set-callback", form)
		redistest.Want(t, field, status, http.StatusBadRequest)
		if !strings.Contains(text, `id="fault-`+field+`"`) {
			t.Errorf("%s: the fault is not beside the field:\n%s", field, text)
		}
	}
	if targets, err := r.op.PushTargets(t.Context(), r.Queue); err != nil || len(targets) != 0 {
		t.Errorf("stored: %+v, %v", targets, err)
	}
}

// After a fault the form must show what was sent: a field that was emptied, and a box that was ticked.
func TestCallbackFormKeepsWhatWasSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, r.Queue)
	form := url.Values{"queue": {r.Queue}, "group": {"partner"}, "url": {"https://example.com/"}, "timeout": {"3s"}}
	if status, text := v.post("do-set-callback", form); status != http.StatusOK {
		t.Fatal(text)
	}
	for _, form := range []url.Values{
		{"queue": {r.Queue}, "group": {"partner"}, "edit": {"1"}, "timeout": {""}},
		{"queue": {r.Queue}, "group": {"another"}},
	} {
		form.Set("url", "http://example.com/")
		form.Set("allow_http", "1")
		form.Set("concurrency", "none")
		status, text := v.post("do-set-callback", form)
		redistest.Want(t, "status", status, http.StatusBadRequest)
		contains(t, text, "checked>")
		lacks(t, text, `value="3s"`)
	}
}

// A page that shows only some queues must not say that there is nothing in all of them.
func TestEmptyPagesNameTheQueuesOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	some, all := r.viewer(inspect, "shop.*"), r.viewer(inspect, "*")
	for page, want := range map[string]string{
		"": "There is no queue yet", "dead": "There are no dead letters", "recurrences": "There is no recurrence",
		"callbacks": "No messages are posted to a URL",
	} {
		_, text := all.get(page)
		contains(t, text, want)
		_, text = some.get(page)
		contains(t, text, "of your token")
		lacks(t, text, want)
	}
}

// While there is no queue yet, an operator of all queues must be able to add a recurrence and a target.
func TestTheFirstQueueMayHaveARecurrenceAndATarget(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(operate, "*")
	_, text := v.get("recurrences")
	contains(t, text, "Add …")
	_, text = v.get("callbacks")
	contains(t, text, "do-set-callback")
	v.post("do-set-callback", url.Values{"queue": {r.Queue}, "group": {"partner"}, "url": {"https://example.com/"}})
	targets, err := r.op.PushTargets(t.Context(), r.Queue)
	if err != nil || len(targets) != 1 {
		t.Errorf("targets: %v, %v", targets, err)
	}
}
