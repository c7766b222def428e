package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// places returns the places of a message in the queue of the rig.
func (r *rig) places(id string) []admin.Sighting {
	r.T.Helper()
	f, err := r.op.Find(r.T.Context(), id, admin.FindOptions{Queues: []string{r.Queue}})
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		r.T.Fatal(err)
	}
	return f.Places
}

// deadLetter adds a dead letter of a group.
func (r *rig) deadLetter(id, group, payload string) {
	r.T.Helper()
	r.Do("XADD", r.Keys.Dead, "*", "id", id, "payload", payload, "attempt", "1", "group", group, "reason", "dead_letter",
		"dead_ms", "1700000000000", "entry", "1-1")
}

// states returns the states of a message, each with its group.
func (r *rig) states(id string) string {
	r.T.Helper()
	var all []string
	for _, p := range r.places(id) {
		all = append(all, strings.TrimSpace(fmt.Sprint(p.State, " ", p.Group)))
	}
	return strings.Join(all, ", ")
}

// act posts the form of an action on a message, and returns the text of the page that follows.
func (v *viewer) act(action, queue, id string, fields ...string) (int, string) {
	v.t.Helper()
	form := url.Values{"queue": {queue}, "id": {id}}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	status, page := v.post("do-message-"+action, form)
	return status, words(page)
}

// wantAct checks that an action succeeds, and that the page that follows has the texts.
func (v *viewer) wantAct(action, queue, id string, fields []string, texts ...string) {
	v.t.Helper()
	status, page := v.act(action, queue, id, fields...)
	redistest.Want(v.t, "status of "+action, status, http.StatusOK)
	for _, text := range texts {
		if !strings.Contains(page, text) {
			v.t.Errorf("the page after %s lacks %q:\n%s", action, text, page)
		}
	}
}

// retrying makes a message that waits for a retry of group g.
func (r *rig) retrying(id string) {
	r.T.Helper()
	r.Groups("g")
	r.Ready(id)
	if err := r.op.MakeReady(r.T.Context(), r.Queue); err != nil {
		r.T.Fatal(err)
	}
	entries := r.Take("g", "c", 10)
	r.fail("g", time.Hour, entries[len(entries)-1])
	redistest.Want(r.T, "state of "+id, r.states(id), "retrying g")
}

// Cancel must take a message out of the schedule: a new one, the retry of a group, or a letter that was redriven.
func TestMessagePageCancels(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect, access.Publish}, "*")
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	if _, page := v.get(messageAddress(r.Queue, "a") + "&do=cancel"); !strings.Contains(page, "Cancel the message") {
		t.Errorf("the page has no form to cancel:\n%s", page)
	}
	v.wantAct("cancel", r.Queue, "a", nil, "Cancelled: a will not be delivered.", "nowhere")
	redistest.Want(t, "states of a", r.states("a"), "")
	status, page := v.act("cancel", r.Queue, "a")
	redistest.Want(t, "status of the second cancel", status, http.StatusConflict)
	if !strings.Contains(page, "not scheduled") {
		t.Errorf("the page does not say why a was not cancelled:\n%s", page)
	}
	r.retrying("b")
	status, _ = v.act("cancel", r.Queue, "b", "group", "other")
	redistest.Want(t, "status of cancel for a group without a retry", status, http.StatusConflict)
	redistest.Want(t, "states of b", r.states("b"), "retrying g")
	v.wantAct("cancel", r.Queue, "b", []string{"group", "g"}, "Cancelled: b will not be delivered to g again.")
	redistest.Want(t, "states of b", r.states("b"), "")
	redistest.Want(t, "audit lines", r.log.Count("dashboard.do-message-cancel"), 4)
	lines := r.log.Lines("dashboard.do-message-cancel")
	if last := lines[len(lines)-1]; !strings.Contains(last, "id=b") || !strings.Contains(last, "group=g") {
		t.Errorf("the audit line does not name the message and the group: %s", last)
	}
}

// Cancel must stop a message that a worker holds, or that is ready. For one group it must leave alone what other groups
// have not read.
func TestMessagePageCancelsWhatRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect, access.Publish}, "*")
	r.Groups("g", "h")
	r.Ready("held")
	r.Take("g", "host-1", 1)
	r.Ready("unread")
	status, page := v.act("cancel", r.Queue, "unread", "running", "1", "group", "h")
	redistest.Want(t, "status of cancel for one of two groups", status, http.StatusConflict)
	if !strings.Contains(page, "group h has not read it yet") {
		t.Errorf("the page does not say why the message was not cancelled:\n%s", page)
	}
	v.wantAct("cancel", r.Queue, "held", []string{"running", "1", "group", "g"},
		"A worker holds held, and is told within 5 seconds, host-1 of g", "being cancelled for g")
	if !slices.ContainsFunc(r.places("held"), func(p admin.Sighting) bool { return p.Group == "g" && p.Cancelled }) {
		t.Errorf("the held message is not cancelled: %+v", r.places("held"))
	}
	v.wantAct("cancel", r.Queue, "unread", []string{"running", "1"}, "Cancelled: unread will not be delivered.")
	redistest.Want(t, "states of unread", r.states("unread"), "")
	status, _ = v.act("cancel", r.Queue, "nobody", "running", "1")
	redistest.Want(t, "status of cancel of an unknown message", status, http.StatusNotFound)
}

// Reschedule must move a message to the time that the viewer chose: exactly with the script of the page, and in UTC
// without it. Run now must make it due.
func TestMessagePageReschedules(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect, access.Publish}, "*")
	r.send(r.Queue, "a", "p", bridge.At(time.Date(2100, 1, 2, 3, 4, 5, 0, time.UTC)))
	_, page := v.get(messageAddress(r.Queue, "a") + "&do=move")
	for _, want := range []string{
		`value="2100-01-02T03:04:05"`, `data-at="2100-01-02T03:04:05Z"`, `<span data-zone>UTC</span>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the form to reschedule lacks %q:\n%s", want, page)
		}
	}
	due := func(id string) string { return r.places(id)[0].Due.UTC().Format(time.RFC3339Nano) }
	v.wantAct("move", r.Queue, "a", []string{"local", "2100-05-06T07:08"}, "Moved: a is due at 2100-05-06 07:08:00 UTC.")
	redistest.Want(t, "due time by the field", due("a"), "2100-05-06T07:08:00Z")
	v.wantAct("move", r.Queue, "a", []string{"local", "2100-05-06T07:08:09", "at", "2100-05-06T05:08:09.123Z"})
	redistest.Want(t, "due time by the script", due("a"), "2100-05-06T05:08:09.123Z")
	for _, wrong := range [][]string{
		{"local", ""}, {"local", "tomorrow"}, {"at", "tomorrow"}, {"at", "0999-01-01T00:00:00Z"},
		{"local", "2999-01-01T00:00"},
	} {
		status, page := v.act("move", r.Queue, "a", append(wrong, "do", "move")...)
		redistest.Want(t, fmt.Sprint("status of ", wrong), status, http.StatusBadRequest)
		if !strings.Contains(page, "This was refused") {
			t.Errorf("%v: the page does not show the error:\n%s", wrong, page)
		}
	}
	redistest.Want(t, "due time after refusals", due("a"), "2100-05-06T05:08:09.123Z")
	v.wantAct("move", r.Queue, "a", []string{"now", "1"}, "a is due now.")
	if left := time.Until(r.places("a")[0].Due); left > 0 {
		t.Errorf("the message is due in %s, not now", left)
	}
	r.retrying("b")
	v.wantAct("move", r.Queue, "b", []string{"now", "1", "group", "g"}, "b is due now.")
	if left := time.Until(r.places("b")[0].Due); left > 0 {
		t.Errorf("the retry is due in %s, not now", left)
	}
	status, _ := v.act("move", r.Queue, "nobody", "now", "1")
	redistest.Want(t, "status of an unknown message", status, http.StatusConflict)
}

// Expire must make a bridge dead-letter the message instead of delivering it.
func TestMessagePageExpires(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "*")
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	v.wantAct("expire", r.Queue, "a", nil, "Expired: a bridge makes a a dead letter in a moment.")
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "states of a", r.states("a"), "dead")
	r.retrying("b")
	v.wantAct("expire", r.Queue, "b", []string{"group", "g"})
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "states of b", r.states("b"), "dead g")
	status, _ := v.act("expire", r.Queue, "nobody")
	redistest.Want(t, "status of an unknown message", status, http.StatusConflict)
}

// Redrive must schedule a dead letter for its group again. Purge must delete it, only after the viewer has typed the
// word.
func TestMessagePageRedrivesAndPurges(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "*")
	r.Kill("g", lua.ReasonDeadLetter, "broken", "a", "b")
	letter := r.places("a")[0].Letter
	v.wantAct("redrive", r.Queue, "a", []string{"letter", letter}, "Redriven: a is delivered again, from attempt 1.")
	redistest.Want(t, "states of a", r.states("a"), "retrying g")
	status, page := v.act("redrive", r.Queue, "a", "letter", letter)
	redistest.Want(t, "status of the second redrive", status, http.StatusNotFound)
	if !strings.Contains(page, "somebody redrove or purged it before") {
		t.Errorf("the page does not say why the letter was not redriven:\n%s", page)
	}
	letter = r.places("b")[0].Letter
	if _, page := v.get(messageAddress(r.Queue, "b") + "&do=purge&letter=" + letter); !strings.Contains(page,
		`data-confirms="purge"`) || !strings.Contains(page, letter) {
		t.Errorf("the page has no form to purge:\n%s", page)
	}
	for _, typed := range []string{"", "Purge", "b"} {
		status, _ := v.act("purge", r.Queue, "b", "letter", letter, "do", "purge", "confirm", typed)
		redistest.Want(t, "status of a purge after typing "+typed, status, http.StatusBadRequest)
	}
	redistest.Want(t, "states of b", r.states("b"), "dead g")
	v.wantAct("purge", r.Queue, "b", []string{"letter", letter, "confirm", "purge"},
		"Purged: the dead letter of b is deleted.")
	redistest.Want(t, "states of b", r.states("b"), "")
	r.deadLetter("c", "g", "p")
	r.Do("XGROUP", "DESTROY", r.Keys.Stream, "g")
	status, page = v.act("redrive", r.Queue, "c", "letter", r.places("c")[0].Letter)
	redistest.Want(t, "status of a redrive for a group that is gone", status, http.StatusConflict)
	if !strings.Contains(page, "the stream has no group g any more") {
		t.Errorf("the page does not say why the letter was not redriven:\n%s", page)
	}
	status, _ = v.act("redrive", r.Queue, "c", "letter", "no letter")
	redistest.Want(t, "status of an invalid letter", status, http.StatusBadRequest)
}

// The page must show only buttons whose action the token allows, and the server must refuse the others.
func TestMessagePageFollowsTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	r.Kill("g", lua.ReasonDeadLetter, "broken", "b")
	letter := r.places("b")[0].Letter
	buttons := []string{"Run now", "Reschedule…", "Cancel…", "Repeat…", "Expire…", "Redrive", "Purge…"}
	for _, c := range []struct {
		name  string
		verbs []access.Verb
		want  string
	}{
		{"inspect", []access.Verb{access.Inspect}, ""},
		{"publish", []access.Verb{access.Inspect, access.Publish}, "Run now, Reschedule…, Cancel…, Repeat…"},
		{"operate", []access.Verb{access.Operate}, strings.Join(buttons, ", ")},
	} {
		v := r.viewer(c.verbs, "*")
		page := v.wantMessage(r.Queue, "a") + v.wantMessage(r.Queue, "b")
		var shown []string
		for _, button := range buttons {
			if strings.Contains(words(page), button) {
				shown = append(shown, button)
			}
		}
		redistest.Want(t, "buttons for a token with "+c.name, strings.Join(shown, ", "), c.want)
		for _, form := range messageForms {
			_, page := v.get(messageAddress(r.Queue, "a") + "&do=" + form)
			isAllowed := c.name == "operate" || c.name == "publish" && (form == "cancel" || form == "move")
			redistest.Want(t, "form "+form+" for a token with "+c.name,
				strings.Contains(page, `action="do-message-`+form+`" method="post" aria`), isAllowed)
		}
	}
	publisher := r.viewer([]access.Verb{access.Inspect, access.Publish}, "*")
	for _, action := range []string{"expire", "redrive", "purge"} {
		status, _ := publisher.act(action, r.Queue, "b", "letter", letter, "confirm", "purge")
		redistest.Want(t, action+" with publish", status, http.StatusForbidden)
	}
	elsewhere := r.viewer(access.Verbs(), "elsewhere.*")
	for _, action := range []string{"cancel", "move", "expire", "redrive", "purge"} {
		status, _ := elsewhere.act(action, r.Queue, "a", "now", "1", "letter", letter, "confirm", "purge")
		redistest.Want(t, action+" of another queue", status, http.StatusForbidden)
	}
	redistest.Want(t, "states after refusals", r.states("a")+"; "+r.states("b"), "scheduled; dead g")
}

// A link or a form must not name a dead letter of another message than its page shows: whoever follows it would purge a
// letter that he has not seen, and the audit line would name another message.
func TestAFormCannotNameTheLetterOfAnotherMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	r.deadLetter("mine", "g", "p")
	r.deadLetter("other", "g", "p")
	letter := r.places("other")[0].Letter
	v := r.viewer(operate, "*")
	for _, action := range []string{"redrive", "purge"} {
		status, page := v.act(action, r.Queue, "mine", "letter", letter, "confirm", "purge")
		redistest.Want(t, "status of "+action, status, http.StatusConflict)
		if !strings.Contains(page, "is one of another message, other") {
			t.Errorf("the page does not say why nothing was changed:\n%s", page)
		}
	}
	redistest.Want(t, "states of other", r.states("other"), "dead g")
}

// The notice must tell the new due time in the zone of the viewer, and must not promise a delivery that a setting of
// the queue prevents.
func TestTheNoticeOfAMoveTellsWhatHappens(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	v := r.viewer(operate, "*")
	v.setZone("Europe/Berlin")
	v.wantAct("move", r.Queue, "a", []string{"at", "2031-07-01T10:00:00Z"}, "a is due at 2031-07-01 12:00:00 CEST.")
	r.Policy(map[string]string{"rate": "5/s"})
	v.wantAct("move", r.Queue, "a", []string{"now", "1"},
		"a is due now, and becomes ready within the release rate of 5/s.")
	r.Policy(map[string]string{"held": "1"})
	v.wantAct("move", r.Queue, "a", []string{"now", "1"}, "when its paused queue is resumed.")
}
