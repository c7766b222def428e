package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
)

// hiddenFields returns the hidden fields of the last form of a page that posts to an action.
func hiddenFields(t *testing.T, page, action string) url.Values {
	t.Helper()
	_, form, found := strings.Cut(page, `action="`+action+`"`)
	if !found {
		t.Fatalf("the page has no form for %s:\n%s", action, page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	fields := url.Values{}
	for _, tag := range strings.Split(form, "<input")[1:] {
		tag, _, _ = strings.Cut(strings.ReplaceAll(tag, "\n", " "), ">")
		if !strings.Contains(tag, `type="hidden"`) {
			continue
		}
		value := func(name string) string {
			_, rest, _ := strings.Cut(tag, name+`="`)
			text, _, _ := strings.Cut(rest, `"`)
			return text
		}
		fields.Add(value(" name"), value("value"))
	}
	return fields
}

// Saving must change the settings in Redis that the page of differences names, and no others.
func TestSettingsAreSavedAfterTheirDifferencesWereShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	r.Policy(map[string]string{"max_attempts": "9", "history": "100"})
	v := r.viewer(operate, r.Queue)
	page := "queue?queue=" + r.Queue + "&tab=settings"
	status, text := v.get(page)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, `name="max_attempts" value="9"`, `placeholder="30s"`, "built in",
		`name="was.max_attempts" value="9"`)
	form := url.Values{"retry_max": {"2h"}, "max_attempts": {""}, "rate": {"300/m"}, "retry_delays": {"1m,3m"},
		"key_failure": {"skip"}, "held": {"true"}, "history": {"0"}}
	_, text = v.get(page + "&change=1&" + form.Encode())
	contains(t, text, "Differences to save", "<del>1h</del>", "<ins>2h</ins>", "<del>9</del>", "<ins>40</ins>",
		"At most 300 messages become ready per minute.", "<ins>1m,3m</ins>", "The present history is deleted.",
		"becomes a dead letter after 40 attempts within about", "Until now: 9 attempts within about")
	status, text = v.post("do-queue-settings", hiddenFields(t, text, "do-queue-settings"))
	redistest.Want(t, "status of saving", status, http.StatusOK)
	contains(t, text, "7 settings were changed")
	p, _, err := r.op.ReadPolicy(t.Context(), r.Queue, "")
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Default()
	want.RetryMax, want.Rate, want.RetryDelays, want.KeyFailure = 2*time.Hour, "300/m", "60000,180000", policy.KeySkip
	want.Held = true
	redistest.Want(t, "policy", p, want)
	redistest.Want(t, "max_attempts in Redis", r.Number("HEXISTS", r.Keys.Policy, "max_attempts"), 0)
	redistest.Want(t, "visibility in Redis", r.Number("HEXISTS", r.Keys.Policy, "visibility_ms"), 0)
	_, text = v.get(page + "&change=1&retry_max=2h")
	contains(t, text, "Nothing differs")
}

// The settings of a group must be edited apart from those of the queue.
func TestSettingsOfAGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	const group = `a "b" <c>`
	r.Groups(group)
	r.Fill(1)
	v := r.viewer(operate, r.Queue)
	page := "queue?queue=" + r.Queue + "&tab=settings&group=" + url.QueryEscape(group)
	status, text := v.get(page)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "Group a &#34;b&#34; &lt;c&gt;")
	lacks(t, text, `name="rate"`, "<c>")
	form := url.Values{"queue": {r.Queue}, "group": {group}, "max_attempts": {"3"}, "was.max_attempts": {""}}
	status, text = v.post("do-queue-settings", form)
	redistest.Want(t, "status of saving", status, http.StatusOK)
	contains(t, text, "1 setting was changed")
	p, _, err := r.op.ReadPolicy(t.Context(), r.Queue, group)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "max attempts of the group", p.MaxAttempts, 3)
	p, _, err = r.op.ReadPolicy(t.Context(), r.Queue, "")
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "max attempts of the queue", p.MaxAttempts, policy.DefaultMaxAttempts)
	form.Set("rate", "5/s")
	form.Del("was.max_attempts")
	_, text = v.post("do-queue-settings", form) // groups have no rate: the field is ignored
	contains(t, text, "Nothing was changed")
	status, _ = v.get("queue?queue=" + r.Queue + "&tab=settings&group=unknown")
	redistest.Want(t, "status of an unknown group", status, http.StatusNotFound)
}

// A wrong value must be named beside its field, with its limit, and what was typed must stay. Nothing must be saved.
func TestWrongSettingsKeepTheForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	v := r.viewer(operate, r.Queue)
	for word, c := range map[string]struct{ typed, fault string }{
		"visibility_timeout": {"1ms", "must be between 100ms and 168h0m0s"},
		"max_attempts":       {"many", "must be a whole number"},
		"retry_min":          {"1x", "must be a duration"},
		"retry_max":          {"1ms", "must be at least retry_min"},
		"retry_delays":       {"1m,,", "must be delays separated by commas"},
		"rate":               {"fast", "must be"},
		"burst":              {"-1", "must be between"},
		"held":               {"perhaps", "must be true or false"},
		"ready_limit":        {"99999999999999999999", "must be a whole number"},
		"history_age":        {"1s", "must be between"},
		"key_failure":        {hostileText, "must be one of block, skip"},
	} {
		form := url.Values{"queue": {r.Queue}, "tab": {"settings"}, word: {c.typed}, "max_snoozes": {"77"}}
		if word == "retry_max" {
			form.Set("retry_min", "1h")
		}
		for name, ask := range map[string]func() (int, string){
			"preview": func() (int, string) { return v.get("queue?change=1&" + form.Encode()) },
			"save":    func() (int, string) { return v.post("do-queue-settings", form) },
		} {
			status, text := ask()
			if name == "save" {
				redistest.Want(t, word+": status", status, http.StatusBadRequest)
			}
			contains(t, text, `<a href="#field-`+word+`">`, `id="fault-`+word+`"`, c.fault, `name="max_snoozes" value="77"`)
			if word != "held" && word != "key_failure" { // a select has no other values
				contains(t, text, `value="`+c.typed+`"`)
			}
			lacks(t, text, "<script>alert")
		}
	}
	redistest.Want(t, "policy in Redis", r.Exists(r.Keys.Policy), 0)
}

// A change by somebody else between the form and the saving must be shown, and must not be overwritten by a field that
// the viewer did not touch.
func TestSettingsNoticeALostRace(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	r.Policy(map[string]string{"max_attempts": "5"})
	v := r.viewer(operate, r.Queue)
	seen := url.Values{"queue": {r.Queue}, "tab": {"settings"}, "max_attempts": {"5"}, "was.max_attempts": {"5"},
		"retry_max": {"2h"}, "was.retry_max": {""}}
	r.Policy(map[string]string{"max_attempts": "6", "retry_max_ms": "60000"}) // by somebody else
	status, text := v.post("do-queue-settings", seen)
	redistest.Want(t, "status", status, http.StatusConflict)
	contains(t, text, "somebody else has changed max_attempts, retry_max meanwhile", "<del>1m</del>", "<ins>2h</ins>",
		"<strong>max_attempts</strong> was 5, and is 6 now.")
	p, _, err := r.op.ReadPolicy(t.Context(), r.Queue, "")
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "retry_max after the refusal", p.RetryMax, time.Minute)
	status, _ = v.post("do-queue-settings", hiddenFields(t, text, "do-queue-settings"))
	redistest.Want(t, "status of saving again", status, http.StatusOK)
	p, _, err = r.op.ReadPolicy(t.Context(), r.Queue, "")
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "retry_max after saving", p.RetryMax, 2*time.Hour)
	redistest.Want(t, "max_attempts of somebody else", p.MaxAttempts, 6)
}

// A viewer who may only look must see the settings without a form, and must be refused.
func TestSettingsAreReadOnlyWithoutOperate(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	for name, v := range map[string]*viewer{"inspect": r.viewer(inspect, "*"), "publish": r.viewer(publish, "*")} {
		_, text := v.get("queue?queue=" + r.Queue + "&tab=settings&change=1&rate=5/s")
		contains(t, text, "max_attempts", "built in")
		lacks(t, text, "do-queue-settings", `name="rate"`, "Differences")
		status, _ := v.post("do-queue-settings", url.Values{"queue": {r.Queue}, "rate": {"5/s"}})
		redistest.Want(t, name, status, http.StatusForbidden)
	}
	status, _ := r.viewer(operate, "other").post("do-queue-settings", url.Values{"queue": {r.Queue}, "rate": {"5/s"}})
	redistest.Want(t, "operator of another queue", status, http.StatusForbidden)
	redistest.Want(t, "policy in Redis", r.Exists(r.Keys.Policy), 0)
}
