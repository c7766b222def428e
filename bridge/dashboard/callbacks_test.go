package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// A target must be added, changed, given a new key and removed on the page, each with its effect in Redis.
func TestCallbacksAreManaged(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Operate}, "*")
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
	form.Set("edit", "1")
	form.Set("version", r.target().Version)
	v.post("do-set-callback", form)
	form.Set("version", r.target().Version)
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

// target returns the only target of the queue.
func (r *rig) target() admin.PushState {
	r.T.Helper()
	targets, err := r.op.PushTargets(r.T.Context(), r.Queue)
	if err != nil || len(targets) != 1 {
		r.T.Fatal(targets, err)
	}
	return targets[0]
}

// A viewer must not overwrite what another viewer has changed meanwhile, and not add a target that exists. Regression:
// the button for a new key, pressed twice, dropped the key that the receiver needed.
func TestTwoViewersDoNotOverwriteEachOthersCallback(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	target := url.Values{"queue": {r.Queue}, "group": {"partner"}}
	form := func(more ...string) url.Values {
		all := url.Values{"queue": {r.Queue}, "group": {"partner"}, "url": {"https://example.com/hook"}}
		for i := 0; i < len(more); i += 2 {
			all.Set(more[i], more[i+1])
		}
		return all
	}
	v.post("do-set-callback", form())
	status, text := v.post("do-set-callback", form("url", "https://example.com/other"))
	redistest.Want(t, "status of a second one for the group", status, http.StatusBadRequest)
	contains(t, text, `id="fault-group"`)
	_, text = v.get("callbacks?edit=1&" + target.Encode())
	seen := r.target().Version
	contains(t, text, `name="version" value="`+seen+`"`)
	v.post("do-set-callback", form("edit", "1", "version", seen, "timeout", "3s"))
	for name, action := range map[string]string{"a change": "do-set-callback", "a new key": "do-rotate-key"} {
		status, text = v.post(action, form("edit", "1", "version", seen, "timeout", "9s"))
		redistest.Want(t, "status of "+name+" of a version that was replaced", status, http.StatusConflict)
		contains(t, text, "somebody has changed the target meanwhile")
	}
	redistest.Want(t, "stored", fmt.Sprint(r.target().Timeout, r.target().KeyCount), "3s 1")
	status, _ = v.post("do-drop-key", target)
	redistest.Want(t, "status of dropping the only key", status, http.StatusConflict)
	v.post("do-remove-callback", target)
	status, text = v.post("do-set-callback", form("edit", "1", "version", seen))
	redistest.Want(t, "status of a change of a target that is gone", status, http.StatusConflict)
	contains(t, text, "somebody has removed the target meanwhile")
	redistest.Want(t, "lines of the audit log with the host", r.log.Count("target_host=example.com") > 0, true)
}

// Only an operator of all queues may let a target reach networks that the process alone can reach, because the error of
// a dead letter shows the answer. Regression: an operator of one queue read any address inside the network.
func TestOnlyAnOperatorOfAllQueuesLetsCallbacksReachInside(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	some, all := r.viewer(operate, r.Queue), r.viewer(operate, "*")
	_, text := some.get("callbacks")
	lacks(t, text, `name="networks"`, `name="allow_http"`)
	for field, form := range map[string]url.Values{
		"networks":   {"url": {"https://10.1.2.3/"}, "networks": {"10.0.0.0/8"}},
		"allow_http": {"url": {"http://example.com/"}, "allow_http": {"1"}},
	} {
		form.Set("queue", r.Queue)
		form.Set("group", "g")
		status, text := some.post("do-set-callback", form)
		redistest.Want(t, field, status, http.StatusBadRequest)
		contains(t, text, "may be set only with a token that may operate all queues")
	}
	inside := url.Values{"queue": {r.Queue}, "group": {"g"}, "url": {"https://10.1.2.3/hook?a=b"},
		"networks": {"10.0.0.0/8"}}
	if status, text := all.post("do-set-callback", inside); status != http.StatusOK {
		t.Fatal(text)
	}
	form := url.Values{"queue": {r.Queue}, "group": {"g"}, "edit": {"1"}, "version": {r.target().Version},
		"url": {"https://10.1.2.4/hook"}}
	status, text := some.post("do-set-callback", form)
	redistest.Want(t, "another address inside", status, http.StatusBadRequest)
	contains(t, text, `id="fault-url"`)
	form.Set("url", "https://10.1.2.3/hook?…")
	status, text = some.post("do-set-callback", form)
	redistest.Want(t, "the hidden part of the URL", status, http.StatusBadRequest)
	contains(t, text, "secret and not shown")
	form.Set("url", "https://10.1.2.3/hook?c=d")
	form.Set("timeout", "3s")
	status, text = some.post("do-set-callback", form)
	redistest.Want(t, "the same address", status, http.StatusOK)
	if now := r.target(); now.Timeout != 3*time.Second || len(now.Networks) != 1 {
		t.Errorf("stored: %+v\n%s", now, text)
	}
}

// A queue whose targets or recurrences cannot be read must not hide those of other queues.
func TestAQueueThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	other := r.On(r.Queue + "-broken")
	for _, queue := range []string{r.Queue, other.Queue} {
		if err := r.op.Register(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	r.recur(bridge.Recurrence{Name: "nightly", Every: time.Hour})
	other.Do("SET", other.Keys.Recurring, "a string")
	other.Do("SET", other.Keys.Push, "a string")
	v := r.viewer(operate, "*")
	v.post("do-set-callback", url.Values{"queue": {r.Queue}, "group": {"g"}, "url": {"https://example.com/"}})
	for page, want := range map[string]string{"recurrences": "nightly", "callbacks": "https://example.com/"} {
		status, text := v.get(page)
		redistest.Want(t, page, status, http.StatusOK)
		contains(t, text, want, "cannot be read", other.Queue)
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
	v := r.viewer([]access.Verb{access.Operate}, "*")
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

// The page must tell how many messages wait for a target, because its settings are valid also while it is down.
func TestCallbacksTellWhatWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("partner")
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, "*")
	v.post("do-set-callback", url.Values{"queue": {r.Queue}, "group": {"partner"}, "url": {"https://example.com/"}})
	for range 17 {
		if _, err := r.client.Schedule(t.Context(), r.Queue, nil); err != nil {
			t.Fatal(err)
		}
	}
	v.eventuallyShows("callbacks", `<data value="17">`)
}
