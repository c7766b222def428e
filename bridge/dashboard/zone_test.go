package dashboard

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// setZone gives the browser the cookie of a time zone, as the script of a page does.
func (v *viewer) setZone(zone string) {
	v.t.Helper()
	base, err := url.Parse(v.base)
	if err != nil {
		v.t.Fatal(err)
	}
	v.http.Jar.SetCookies(base, []*http.Cookie{{Name: zoneCookie, Value: zone}})
}

// zoneOfForm returns the zone in which the forms of a page show their times.
func zoneOfForm(t *testing.T, page string) string {
	t.Helper()
	found := regexp.MustCompile(`name="` + zoneField + `" value="([^"]*)"`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the form does not tell its zone:\n%s", page)
	}
	return html.UnescapeString(found[1])
}

// A form is read in the zone in which its times were shown, whatever the zone of the viewer is when the form is sent.
// Regression: the first page after a start of the browser showed UTC, and its form was read in the browser's zone, so
// all messages that matched were rescheduled by the offset wrongly.
func TestATimeIsReadInTheZoneInWhichItWasShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.At(time.Date(2031, 7, 1, 10, 0, 0, 0, time.UTC)))
	search := url.Values{"queue": {r.Queue}, "from": {"2031-07-01T09:59"}, "until": {"2031-07-01T10:01"}}
	for _, shown := range []struct{ zone, at, want string }{
		{"UTC", "2031-07-02T12:00:00", "2031-07-02T12:00:00Z"},
		{"Asia/Tokyo", "2031-07-02T12:00:00", "2031-07-02T03:00:00Z"},
	} {
		v := r.viewer(access.Verbs(), "*")
		if shown.zone != "UTC" {
			v.setZone(shown.zone)
		}
		_, page := v.get("search?queue=" + r.Queue)
		redistest.Want(t, "zone of the form", zoneOfForm(t, page), shown.zone)
		contains(t, page, "New due time ("+shown.zone+")")
		v.setZone("Europe/Berlin") // the script of the page has told the zone, or the viewer has travelled
		form := url.Values{"query": {"queue=" + r.Queue}, "which": {whichAll}, "phase": {""}, "kind": {"reschedule"},
			"at": {shown.at}, zoneField: {shown.zone}}
		status, page := v.post("do-search", form)
		redistest.Want(t, "status", status, http.StatusOK)
		found := regexp.MustCompile(`name="at" value="([^"]*)"`).FindStringSubmatch(page)
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			if found == nil {
				job := regexp.MustCompile(`data-live="live-job\?[^"]*job=(\w+)`).FindStringSubmatch(page)[1]
				_, page = v.get("job?job=" + job)
				found = regexp.MustCompile(`name="at" value="([^"]*)"`).FindStringSubmatch(page)
			}
			return found != nil, page
		})
		redistest.Want(t, "time of the form that makes the change", html.UnescapeString(found[1]), shown.want)
		form.Set("run", "1")
		v.post("do-search", form)
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			due := r.places("a")[0].Due.UTC().Format(time.RFC3339)
			return due == shown.want, "due at " + due
		})
	}
	// The conditions of a search have the zone as well, and go on as exact times.
	v := r.viewer(access.Verbs(), "*")
	v.setZone("Europe/Berlin")
	search.Set(zoneField, "America/New_York")
	_, page := v.get("search?" + search.Encode())
	contains(t, page, `value="2031-07-01T15:59:00"`, "Due from (Europe/Berlin)", "from=2031-07-01T13%3A59%3A00Z")
	search.Set(zoneField, "Atlantis")
	status, _ := v.get("search?" + search.Encode())
	redistest.Want(t, "status of an unknown zone", status, http.StatusBadRequest)
	status, page = v.get("search?" + zoneField + "=UTC")
	if status != http.StatusOK || strings.Contains(page, "search-stream") {
		t.Errorf("a search for nothing begins: %d\n%s", status, page)
	}
}

// The forms that create a message and that edit a recurrence are read in the zone in which they were shown.
func TestFormsKeepTheirZone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	start := time.Date(2031, 7, 1, 10, 0, 0, 0, time.UTC)
	spec := bridge.Recurrence{Queue: r.Queue, Name: "n", Every: time.Hour, Start: start, Payload: []byte("p")}
	if _, err := r.op.Recur(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	_, create := v.get("queue?queue=" + r.Queue + "&tab=create")
	_, edit := v.get("recurrence-edit?queue=" + r.Queue + "&edit=n")
	redistest.Want(t, "zone of the form that creates", zoneOfForm(t, create), "UTC")
	redistest.Want(t, "zone of the form that edits", zoneOfForm(t, edit), "UTC")
	contains(t, edit, `value="2031-07-01T10:00:00"`)
	v.setZone("Asia/Tokyo")
	_, page := v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"b"}, "at": {"2031-07-01T10:00:00"},
		"kind": {"text"}, zoneField: {"UTC"}})
	places := r.places("b")
	if len(places) != 1 || !places[0].Due.Equal(start) {
		t.Errorf("created: %+v\n%s", places, page)
	}
	_, page = v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"b"}, "at": {"2031-07-01T10:00:00"},
		"kind": {"text"}, zoneField: {"UTC"}})
	redistest.Want(t, "zone of the form that is shown again", zoneOfForm(t, page), "UTC")
	contains(t, page, "In UTC.")
	version := regexp.MustCompile(`name="version" value="([^"]*)"`).FindStringSubmatch(edit)[1]
	_, page = v.post("do-recurrence-save", url.Values{"queue": {r.Queue}, "name": {"n"}, "edit": {"n"}, "every": {"2h"},
		"start": {"2031-07-01T10:00:00"}, "payload": {"p"}, "encoding": {"text"}, "version": {version}, zoneField: {"UTC"}})
	redistest.Want(t, "zone of the preview", zoneOfForm(t, page), "UTC")
	contains(t, page, `name="start" value="2031-07-01T10:00:00"`)
	v.post("do-recurrence-save", url.Values{"queue": {r.Queue}, "name": {"n"}, "edit": {"n"}, "every": {"2h"},
		"start": {"2031-07-01T10:00:00"}, "payload": {"p"}, "encoding": {"text"}, "version": {version}, zoneField: {"UTC"},
		"step": {"save"}})
	stored, err := r.op.Recurrence(t.Context(), r.Queue, "n")
	if err != nil || !stored.Spec.Start.Equal(start) || stored.Spec.Every != 2*time.Hour {
		t.Errorf("stored: %+v, %v", stored.Spec, err)
	}
}
