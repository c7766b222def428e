package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// recur adds a recurrence to the queue of the rig.
func (r *rig) recur(spec bridge.Recurrence) {
	r.T.Helper()
	spec.Queue = r.Queue
	if _, err := r.op.Recur(r.T.Context(), spec); err != nil {
		r.T.Fatal(err)
	}
}

// recurrence returns a stored recurrence.
func (r *rig) recurrence(name string) bridge.RecurrenceState {
	r.T.Helper()
	s, err := r.op.Recurrence(r.T.Context(), r.Queue, name)
	if err != nil {
		r.T.Fatal(err)
	}
	return s
}

// The page must tell when each recurrence recurs, in words, and whether it runs. It must show only queues of the token.
func TestRecurrencesAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.recur(bridge.Recurrence{Name: "work", Cron: "0 9 * * 1-5", Zone: "Europe/Berlin", Owner: "billing"})
	r.recur(bridge.Recurrence{Name: "<i>probe</i>", Every: 5 * time.Minute, Overlap: bridge.OverlapSkip, Paused: true})
	r.recur(bridge.Recurrence{Name: "once", Every: time.Hour, End: time.Now().Add(time.Millisecond)})
	r.Do("HSET", r.Keys.Recurring, "broken", `{"cron":"x"}`)
	if _, err := r.op.Recur(t.Context(), bridge.Recurrence{Queue: "other", Name: "secret", Every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, r.Queue)
	for _, page := range []string{"recurrences", "recurrences?queue=" + r.Queue} {
		status, text := v.get(page)
		redistest.Want(t, page, status, http.StatusOK)
		contains(t, text, "at 09:00 on weekdays in Europe/Berlin", "every 5 minutes", "&lt;i&gt;probe&lt;/i&gt;",
			`<span class="badge good">active</span>`, `<span class="badge warn">paused</span>`, "billing",
			`<span class="badge bad">wrong</span>`, "1 recurrence is not planned")
		lacks(t, text, "<i>probe", "secret", "Add …")
	}
	_, text := v.get("recurrences?filter=BILL")
	contains(t, text, "weekdays")
	lacks(t, text, "probe")
	_, text = v.get("recurrences?filter=nothing")
	contains(t, text, `class="empty"`)
	status, _ := v.get("recurrences?queue=other")
	redistest.Want(t, "another queue", status, http.StatusForbidden)
	status, _ = v.get("recurrence?queue=" + r.Queue + "&name=missing")
	redistest.Want(t, "missing", status, http.StatusNotFound)
	_, text = v.get("recurrence?queue=" + r.Queue + "&name=broken")
	contains(t, text, "its spec is wrong")
	_, text = v.get("recurrence?queue=" + r.Queue + "&name=" + url.QueryEscape("<i>probe</i>"))
	contains(t, text, "every 5 minutes", "left out while a group still works", "If it ran")
	lacks(t, text, "<i>probe", "do-recurrence")
	redistest.Want(t, "next times", strings.Count(text, "(<time"), nextShown)
	_, text = r.viewer(operate, "*").get("recurrences")
	contains(t, text, "secret", "Add …")
}

// Pause, resume, run now and remove must do so, and only for a token that may operate the queue.
func TestRecurrenceIsPausedRunAndRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.recur(bridge.Recurrence{Name: "nightly", Every: time.Hour, Payload: []byte("p")})
	form := url.Values{"queue": {r.Queue}, "name": {"nightly"}}
	for name, v := range map[string]*viewer{
		"inspect": r.viewer(inspect, "*"), "publish": r.viewer(publish, "*"), "other": r.viewer(operate, "other"),
	} {
		for _, a := range []string{"pause", "resume", "run", "remove", "save"} {
			status, _ := v.post("do-recurrence-"+a, form)
			redistest.Want(t, name+": "+a, status, http.StatusForbidden)
		}
	}
	redistest.Want(t, "scheduled before", len(r.scheduled()), 1)
	v := r.viewer(operate, r.Queue)
	_, text := v.post("do-recurrence-pause", form)
	contains(t, text, "nightly is paused", "do-recurrence-resume")
	redistest.Want(t, "paused", r.recurrence("nightly").Spec.Paused, true)
	redistest.Want(t, "scheduled while paused", len(r.scheduled()), 0)
	_, text = v.post("do-recurrence-pause", form)
	contains(t, text, "already in this state")
	_, text = v.post("do-recurrence-run", form)
	contains(t, text, "-run was scheduled for now", "by hand")
	redistest.Want(t, "scheduled by hand", len(r.scheduled()), 1)
	_, text = v.post("do-recurrence-resume", form)
	contains(t, text, "is resumed", "do-recurrence-pause")
	redistest.Want(t, "paused", r.recurrence("nightly").Spec.Paused, false)

	form.Set("confirm", "nightl")
	status, text := v.post("do-recurrence-remove", form)
	redistest.Want(t, "wrong name", status, http.StatusBadRequest)
	contains(t, text, "must be nightly")
	r.recurrence("nightly")
	form.Set("confirm", "nightly")
	_, text = v.post("do-recurrence-remove", form)
	contains(t, text, "nightly was removed. 1 planned message was cancelled.")
	status, _ = v.post("do-recurrence-run", form)
	redistest.Want(t, "run of a removed one", status, http.StatusNotFound)
	redistest.Want(t, "lines of the audit log", r.log.Count("action=dashboard.do-recurrence-run queue="+r.Queue), 2)
	redistest.Want(t, "lines with the name", r.log.Count("name=nightly"), 7)
}

// A recurrence must be added only after its next occurrences were shown. Errors must stand beside their fields, and
// what was typed must stay.
func TestRecurrenceIsAdded(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	v := r.viewer(operate, r.Queue)
	_, text := v.get("recurrence-edit?queue=" + r.Queue)
	contains(t, text, "Add a recurrence", `name="zone" value="UTC"`, "Show the next occurrences")
	form := url.Values{"queue": {r.Queue}, "name": {"<b>x</b>"}, "encoding": {"text"}, "cron": {"0 25 * * *"},
		"zone": {"Mars"}, "count": {"many"}, "jitter": {"soon"}, "headers": {"no colon"}, "end": {"2020-01-01T00:00"},
		"start": {"2021-01-01T00:00"}, "payload": {"<script>"}, "missed": {"once"}, "overlap": {"allow"}}
	status, text := v.post("do-recurrence-save", form)
	redistest.Want(t, "status", status, http.StatusBadRequest)
	for _, name := range []string{"cron", "zone", "count", "jitter", "headers", "end"} {
		contains(t, text, `id="fault-`+name+`"`)
	}
	contains(t, text, `value="0 25 * * *"`, `value="many"`, "&lt;script&gt;</textarea>", `value="2020-01-01T00:00"`)
	lacks(t, text, "<script>")

	form = url.Values{"queue": {r.Queue}, "name": {"tick"}, "encoding": {"text"}, "cron": {"30 2 * * *"},
		"zone": {"Europe/Berlin"}, "payload": {"line\r\nline"}, "headers": {"tenant: acme"}, "count": {"7"}, "owner": {"me"},
		"start": {"2099-07-01T00:00"}, "missed": {"skip"}, "overlap": {"skip"}, "jitter": {"1m"}, "paused": {""}}
	_, text = v.post("do-recurrence-save", form)
	contains(t, text, "Nothing is saved yet", "at 02:30 every day in Europe/Berlin", "Wed 2099-07-01 02:30:00 &#43;0200",
		"&#43; count: 7", "&#43; line", "Add it")
	redistest.Want(t, "next times", strings.Count(text, "<li><time"), 5)
	states, err := r.op.Recurrences(t.Context(), r.Queue)
	if err != nil || len(states) != 0 {
		t.Errorf("after the preview there are %d recurrences, %v", len(states), err)
	}
	sent := formOf(text)
	sent.Set("step", "again")
	_, text = v.post("do-recurrence-save", sent)
	contains(t, text, `value="30 2 * * *"`, "line\nline</textarea>", "Show the next occurrences")
	sent.Set("step", "save")
	_, text = v.post("do-recurrence-save", sent)
	contains(t, text, "tick was added.")
	s := r.recurrence("tick").Spec
	want := bridge.Recurrence{Queue: r.Queue, Name: "tick", Cron: "30 2 * * *", Zone: "Europe/Berlin", Count: 7,
		Owner: "me", Payload: []byte("line\nline"), Headers: map[string]string{"tenant": "acme"}, Jitter: time.Minute,
		Missed: bridge.MissedSkip, Overlap: bridge.OverlapSkip, Start: time.Date(2099, 7, 1, 0, 0, 0, 0, time.UTC)}
	if !s.Equal(want) {
		t.Errorf("stored is %+v, want %+v", s, want)
	}
	status, text = v.post("do-recurrence-save", sent)
	redistest.Want(t, "a second one of that name", status, http.StatusBadRequest)
	contains(t, text, "must be new")
}

// An edit must keep what the viewer did not change, show what changes, and refuse to undo a change that somebody else
// made meanwhile.
func TestRecurrenceIsEdited(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	spec := bridge.Recurrence{Name: "tick", Every: 90 * time.Minute, Phase: time.Second, Payload: []byte("\x00\xff"),
		Headers: map[string]string{"a": " b"}, Start: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Count: 5, Owner: "me",
		Missed: bridge.MissedAll, Overlap: bridge.OverlapSkip, Paused: true, Jitter: time.Second}
	r.recur(spec)
	v := r.viewer(operate, r.Queue)
	page := "recurrence-edit?edit=tick&queue=" + r.Queue
	_, text := v.get(page)
	contains(t, text, "belongs to me", `value="1h30m"`, "AP8=</textarea>", `value="2030-01-02T03:04:05"`, " checked",
		`value="skip" selected`, `value="all" selected`)
	form := formOf(text)
	for name, value := range map[string]string{"every": "1h30m", "phase": "1s", "payload": "AP8=", "headers": `{"a":" b"}`,
		"start": "2030-01-02T03:04:05", "count": "5", "owner": "me", "missed": "all", "overlap": "skip", "paused": "1",
		"jitter": "1s"} {
		form.Set(name, value)
	}
	_, text = v.post("do-recurrence-save", form)
	contains(t, text, "Nothing changes.")
	form.Set("every", "2h")
	_, text = v.post("do-recurrence-save", form)
	contains(t, text, "every 2 hours", `<span class="old">− every: 1h30m</span>`,
		`<span class="new">&#43; every: 2h</span>`)
	sent := formOf(text)
	sent.Set("step", "save")
	renamed := formOf(text)
	renamed.Set("name", "tock")
	status, text := v.post("do-recurrence-save", renamed)
	redistest.Want(t, "another name", status, http.StatusBadRequest)
	contains(t, text, "must stay")
	if _, err := r.op.PauseRecurrence(t.Context(), r.Queue, "tick", false); err != nil {
		t.Fatal(err)
	}
	status, text = v.post("do-recurrence-save", sent)
	redistest.Want(t, "changed meanwhile", status, http.StatusConflict)
	contains(t, text, "somebody has changed the recurrence meanwhile", `value="2h"`)
	redistest.Want(t, "interval", r.recurrence("tick").Spec.Every, 90*time.Minute)
	if _, err := r.op.PauseRecurrence(t.Context(), r.Queue, "tick", true); err != nil {
		t.Fatal(err)
	}
	_, text = v.post("do-recurrence-save", sent)
	contains(t, text, "tick was changed.")
	spec.Every, spec.Queue = 2*time.Hour, r.Queue
	if s := r.recurrence("tick").Spec; !s.Equal(spec) {
		t.Errorf("stored is %+v, want %+v", s, spec)
	}
	r.recur(bridge.Recurrence{Name: "large", Every: time.Hour, Payload: []byte(strings.Repeat("x", maxEdited))})
	_, text = v.get("recurrence-payload?as=base64&name=tick&queue=" + r.Queue)
	redistest.Want(t, "payload", text, "AP8=")
	_, text = v.get("recurrence?name=tick&queue=" + r.Queue)
	contains(t, text, "00 ff", "The payload is not UTF-8")
	_, text = v.get("recurrence-edit?edit=large&queue=" + r.Queue)
	contains(t, text, "large", "xxx</textarea>")
}

// The page must tell what became of the last messages: from their places, from the history, or that there is no trace.
func TestRecurrenceTellsWhatBecameOfItsMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	r.Policy(map[string]string{"history": "1000"})
	r.Groups("g")
	r.recur(bridge.Recurrence{Name: "tick", Every: time.Hour})
	v := r.viewer(operate, r.Queue)
	run := func() (id string) {
		t.Helper()
		receipt, err := r.op.RunRecurrence(t.Context(), r.Queue, "tick")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
			t.Fatal(err)
		}
		return receipt.ID
	}
	page := func() string {
		t.Helper()
		r.dashboard.hub.changed("") // else the page may show what was read before
		_, text := v.get("recurrence?queue=" + r.Queue + "&name=tick")
		return text
	}
	contains(t, page(), "It had no occurrence yet.")
	never := pastRun{ID: "tick@1700000000000"}
	r.request(v).addOutcomes(t.Context(), r.Queue, &never)
	redistest.Want(t, "a message that never was", fmt.Sprint(never.Outcomes),
		"[{no trace: it is gone, or was never planned }]")
	first := run()
	contains(t, page(), first, "ready, waits for g")
	entries := r.Take("g", "c", 1)
	contains(t, page(), "being worked on by g")
	if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "g", []lua.Held{{Entry: entries[0]}}); err != nil {
		t.Fatal(err)
	}
	contains(t, page(), "done by g, at attempt 1")
	second := run()
	failure := lua.Failure{Held: lua.Held{Entry: r.Take("g", "c", 1)[0]}, Action: lua.ActionDead, Delay: -1,
		Reason: lua.ReasonMaxAttempts, Error: "broken"}
	if _, err := lua.Retry(t.Context(), r.Client, r.Keys, "g", lua.Attempts{Max: 1, Delays: []time.Duration{time.Second}},
		[]lua.Failure{failure}); err != nil {
		t.Fatal(err)
	}
	contains(t, page(), second, "dead for g: max_attempts", "done by g")
}

// A recurrence whose message hangs leaves out each occurrence, and looked active. Both pages must tell it.
func TestRecurrenceTellsThatOccurrencesAreLeftOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("g")
	r.recur(bridge.Recurrence{Name: "tick", Every: time.Second, Overlap: bridge.OverlapSkip})
	receipt, err := r.op.RunRecurrence(t.Context(), r.Queue, "tick")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	entries := r.Take("g", "c", 1)
	v := r.viewer(operate, r.Queue)
	page := "recurrence?queue=" + r.Queue + "&name=tick"
	text := v.eventuallyShows(page, "had no message:")
	contains(t, text, receipt.ID, "is not finished\n(being worked on by g).", "They are left out")
	v.eventuallyShows("recurrences?queue="+r.Queue, "since then had no message")

	if _, err := lua.Ack(t.Context(), r.Client, r.Keys, "g", []lua.Held{{Entry: entries[0]}}); err != nil {
		t.Fatal(err)
	}
	text = v.eventuallyShows(page, "had no message.")
	lacks(t, text, "They are left out")
}

// Only occurrences before the next one may count, and only those of a recurrence that leaves occurrences out.
func TestPassedOccurrences(t *testing.T) {
	t.Parallel()
	last := time.Date(2026, 3, 30, 12, 0, 0, 0, time.UTC)
	skips := bridge.Recurrence{Name: "n", Queue: "q", Every: time.Minute, Overlap: bridge.OverlapSkip}
	allows, paused := skips, skips
	allows.Overlap, paused.Paused = bridge.OverlapAllow, true
	for _, c := range []struct {
		what  string
		state bridge.RecurrenceState
		want  int
	}{
		{"none", bridge.RecurrenceState{Spec: skips, Last: last, Next: []time.Time{last.Add(time.Minute)}}, 0},
		{"two", bridge.RecurrenceState{Spec: skips, Last: last, Next: []time.Time{last.Add(3 * time.Minute)}}, 2},
		{"many", bridge.RecurrenceState{Spec: skips, Last: last, Next: []time.Time{last.Add(time.Hour * 99)}}, mostPassed},
		{"another policy", bridge.RecurrenceState{Spec: allows, Last: last, Next: []time.Time{last.Add(time.Hour)}}, 0},
		{"paused", bridge.RecurrenceState{Spec: paused, Last: last, Next: []time.Time{last.Add(time.Hour)}}, 0},
		{"no message yet", bridge.RecurrenceState{Spec: skips, Next: []time.Time{last.Add(time.Hour)}}, 0},
	} {
		redistest.Want(t, c.what, len(recurrenceRow{c.state}.Passed()), c.want)
	}
}

// Past occurrences must be those of the spec, the newest first, also across a change of the clocks.
func TestPastRuns(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 3, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		spec bridge.Recurrence
		want string
	}{
		{bridge.Recurrence{Name: "n", Queue: "q", Cron: "30 2 * * *", Zone: "Europe/Berlin"},
			"[03-30 00:30 03-29 01:00 03-28 01:30]"},
		{bridge.Recurrence{Name: "n", Queue: "q", Every: time.Hour}, "[03-30 12:00 03-30 11:00 03-30 10:00]"},
		{bridge.Recurrence{Name: "n", Queue: "q", Every: time.Hour, Start: until.Add(-90 * time.Minute)},
			"[03-30 12:00 03-30 11:00]"},
		{bridge.Recurrence{Name: "n", Queue: "q", Cron: "nonsense"}, "[]"},
	} {
		got := []string{}
		for _, at := range pastRuns(t.Context(), c.spec, until, 3) {
			got = append(got, at.UTC().Format("01-02 15:04"))
		}
		redistest.Want(t, c.spec.Cron+c.spec.Every.String(), fmt.Sprint(got), c.want)
	}
}

// The preview of a recurrence with a number of occurrences must leave out those that are spent.
func TestPreviewLeavesOutSpentOccurrences(t *testing.T) {
	t.Parallel()
	spec := bridge.Recurrence{Queue: "q", Name: "n", Every: time.Hour, Count: 3}
	before := bridge.RecurrenceState{Spec: spec, Used: 2}
	redistest.Want(t, "left", len(newRecurrencePreview(before, spec, false).Next), 1)
	redistest.Want(t, "of a new one", len(newRecurrencePreview(bridge.RecurrenceState{}, spec, true).Next), 3)
}

// The form must keep what it cannot show: the milliseconds of a time. It must warn of a spec that this release cannot
// read, and a reader must not see it.
func TestRecurrenceFormKeepsAndWarns(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	defer r.rendered()
	start := time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)
	r.recur(bridge.Recurrence{Name: "tick", Every: time.Hour, Start: start})
	v := r.viewer(operate, r.Queue)
	page := "recurrence-edit?edit=tick&queue=" + r.Queue
	_, text := v.get(page)
	form := formOf(text)
	for name, value := range map[string]string{"every": "2h", "start": "2030-01-02T03:04:05", "missed": "once",
		"overlap": "allow"} {
		form.Set(name, value)
	}
	_, text = v.post("do-recurrence-save", form)
	lacks(t, text, "− start:")
	sent := formOf(text)
	sent.Set("step", "save")
	v.post("do-recurrence-save", sent)
	if s := r.recurrence("tick").Spec; s.Every != 2*time.Hour || !s.Start.Equal(start) {
		t.Errorf("stored: %+v", s)
	}
	r.Do("HSET", r.Keys.Recurring, "tick", `{"every_ms":1000,"of_a_newer_release":1}`)
	_, text = v.get(page)
	contains(t, text, "The stored spec is wrong", "of_a_newer_release")
	status, _ := v.post("do-recurrence-save", sent)
	redistest.Want(t, "status of a change of a version that was replaced", status, http.StatusConflict)
	for _, address := range []string{page, "recurrence-edit", "recurrence-edit?queue=" + r.Queue} {
		_, text = r.viewer(inspect, "*").get(address)
		contains(t, text, "You may not change")
		lacks(t, text, "do-recurrence-save")
	}
	r.recur(bridge.Recurrence{Name: "a\u202eb", Every: time.Hour})
	_, text = v.get("recurrence?queue=" + r.Queue + "&name=" + url.QueryEscape("a\u202eb"))
	lacks(t, strings.ReplaceAll(text, `value="a`+"\u202e"+`b"`, ""), "\u202e")
	v.post("do-recurrence-remove", url.Values{"queue": {r.Queue}, "name": {"a\u202eb"}, "confirm": {`a\u202eb`}})
	states, err := r.op.Recurrences(t.Context(), r.Queue)
	redistest.Want(t, "recurrences left", fmt.Sprint(len(states), err), "1 <nil>")
}
