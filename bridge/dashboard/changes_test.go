package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// twin starts a second process with the same configuration, and returns its address.
func (r *rig) twin() string {
	r.T.Helper()
	d := redistest.Must(New(r.dashboard.cfg))
	s := httptest.NewServer(http.StripPrefix("/ops/queues", d))
	r.T.Cleanup(func() {
		s.Close()
		_ = d.Close()
	})
	return s.URL + "/ops/queues/"
}

// A page that follows a change must show it, although the page was looked at a moment before, and although another
// process shows it than the one that made the change.
func TestThePageAfterAChangeShowsIt(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		t.Run(fmt.Sprintf("two processes %v", two), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, redistest.Shared(t), nil)
			r.T = t
			for _, id := range []string{"a", "b"} {
				r.send(r.Queue, id, "p", bridge.In(time.Hour))
			}
			r.recur(bridge.Recurrence{Name: "daily", Every: time.Hour})
			writer := r.viewer(access.Verbs(), "*")
			reader := *writer
			if two {
				reader.base = r.twin()
				only := *writer.http
				only.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				writer.http = &only
			}
			queue := "queue?queue=" + r.Queue
			message := messageAddress(r.Queue, "a")
			for _, step := range []struct {
				page, action string
				form         url.Values
				before       string // the page has it before the change
				after        string
			}{
				{queue, "do-queue-pause", nil, ">Pause<", `badge warn">paused`},
				{"", "do-queue-resume", nil, `>paused<`, ""},
				{"", "do-queue-create", url.Values{"id": {"c"}, "in": {"1h"}}, `<data value="3">`, `<data value="4">`},
				{message, "do-message-cancel", url.Values{"id": {"a"}}, "waits for its time", ""},
				{"dead?queue=" + r.Queue, "do-queue-pause-workers", nil, "", ""},
				{"recurrences", "do-recurrence-pause", url.Values{"name": {"daily"}}, `good">active`, `warn">paused`},
				{"recurrence?queue=" + r.Queue + "&name=daily", "do-recurrence-resume", url.Values{"name": {"daily"}},
					`warn">paused`, `good">active`},
				{"tokens", "do-add-token", url.Values{"token": {"night"}, "verb": {"inspect"}, "queue": {"*"}}, "",
					"night"},
				{"tokens", "do-remove-token", url.Values{"token": {"night"}}, ">night<", ""},
				{"callbacks", "do-set-callback", url.Values{"group": {"hook"}, "url": {"https://hook.example/"}}, "",
					"hook.example"},
				{"callbacks", "do-remove-callback", url.Values{"group": {"hook"}}, "hook.example", ""},
			} {
				reader.get(step.page)
				_, text := reader.get(step.page)
				contains(t, text, step.before)
				form := url.Values{"queue": {r.Queue}, "back": {cmp.Or(step.page, "./")}}
				for name, values := range step.form {
					form[name] = values
				}
				if status, text := writer.post(step.action, form); status >= 400 {
					t.Fatalf("%s: %d\n%s", step.action, status, text)
				}
				_, text = reader.get(step.page)
				contains(t, text, step.after)
				if step.after == "" && step.before != "" {
					lacks(t, text, step.before)
				}
			}
		})
	}
}

// Pages must show the changes of a job as soon as its page tells that it has ended.
func TestAPageShowsWhatAJobHasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	v := r.viewer(operate, "*")
	s := newSteps()
	spec := s.spec(operate, r.Queue)
	run := spec.run
	spec.run = func(ctx context.Context, report func(jobCounts)) error {
		err := run(ctx, report)
		_, _ = r.op.Pause(ctx, r.Queue, true)
		return err
	}
	page := redistest.Must(r.request(v).startJob(spec))
	v.get("queue?queue=" + r.Queue)
	close(s.next)
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		_, text := v.get("queue?queue=" + r.Queue) // so that there is a fresh sample
		ended := strings.Contains(fmt.Sprint(v.get(page)), "Done:")
		return ended, text
	})
	_, text := v.get("queue?queue=" + r.Queue)
	contains(t, text, `badge warn">paused`)
}

// A stream from another process than that of the page must not show the state before the change again.
func TestAStreamOfAnotherProcessShowsTheChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.send(r.Queue, "a", "p", bridge.In(time.Hour))
	v := r.viewer(operate, "*")
	other := *v
	other.base = r.twin()
	page := "queue?queue=" + r.Queue
	other.watch("live-" + page).next() // the other process has a topic, which looks again after seconds
	v.post("do-queue-pause", url.Values{"queue": {r.Queue}, "back": {page}})
	_, text := v.get(page)
	found := regexp.MustCompile(`data-live="([^"]+)"`).FindStringSubmatch(text)
	if found == nil {
		t.Fatal(text)
	}
	_, update := other.watch(html.UnescapeString(found[1])).next()
	contains(t, update, `badge warn">paused`)
}

// Each change must write a line of the audit log with its action and its subject. A line has each key once: "token" is
// the token of the viewer.
func TestEachChangeIsAuditedWithItsSubject(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(access.Verbs(), "*")
	own := r.request(v).grant.Name()
	audited := func(action string) string {
		t.Helper()
		lines := r.log.Lines("action=dashboard." + action + " ")
		lines = append(lines, r.log.Lines("action=dashboard."+action+"\n")...)
		if len(lines) == 0 {
			t.Errorf("%s has no line", action)
			return ""
		}
		line := lines[len(lines)-1]
		if strings.Count(line, " token=") != 1 || !strings.Contains(line, " token="+own+" ") {
			t.Errorf("the line does not name the viewer's token once: %s", line)
		}
		return line
	}
	for _, a := range actions {
		if a.path == "do-stop-job" || a.path == "do-search" { // below
			continue
		}
		form := url.Values{"queue": {r.Queue}, "id": {"m-1"}, "group": {"g-1"}, "letter": {"1-1"}, "name": {"n-1"},
			"token": {"t-1"}, "step": {"save"}, "every": {"1h"}, "encoding": {"text"}, "url": {"https://a.example/"}}
		if a.path == "do-dead-edit" {
			form.Set("step", "send")
		}
		v.post(a.path, form)
		line := audited(a.path)
		want := []string{"id=m-1", "group=g-1", "letter=1-1", "name=n-1", "token_name=t-1", "done="}
		if !a.allQueues {
			want = append(want, " queue="+r.Queue+" ")
		}
		contains(t, line, want...)
	}
	if err := r.op.Register(t.Context(), r.Queue); err != nil { // which was deleted
		t.Fatal(err)
	}
	v.post("do-queue-create", url.Values{"queue": {r.Queue}})
	line := audited("do-queue-create")
	if !regexp.MustCompile(` id=\w+`).MatchString(line) {
		t.Errorf("the line of a message without a chosen ID has no ID: %s", line)
	}
	r.send(r.Queue, "found", "p", bridge.In(time.Hour))
	place := foundRow{admin.Hit{Queue: r.Queue, State: admin.StateScheduled, ID: "found"}}.Place()
	status, text := v.post("do-search", url.Values{"which": {whichChosen}, "hit": {place}, "kind": {"cancel"},
		"query": {"q=found"}})
	redistest.Want(t, "status of a change of hits", status, http.StatusOK)
	contains(t, audited("do-search"), "change=cancel", " job=")
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		return r.log.Count("dashboard.job-end") > 0, text
	})
	for _, moment := range []string{"job-begin", "job-end"} {
		contains(t, audited(moment), " queue="+r.Queue+" ", "change=cancel", `what="Cancel 1 chosen message`)
	}
	page := redistest.Must(r.request(v).startJob(newSteps().spec(operate, r.Queue)))
	_, query, _ := strings.Cut(page, "?")
	form := redistest.Must(url.ParseQuery(query))
	v.post("do-stop-job", form)
	contains(t, audited("do-stop-job"), "change=cancel", "job="+form.Get("job"), "queues="+r.Queue)
}

// A change that panics may have changed something, so it must be audited, too.
func TestAChangeThatPanicsIsAudited(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(operate, "*"))
	q.query.Set("queue", "orders")
	begun := time.Now()
	err := guarded(func() error {
		_, err := q.act(action{path: "do-panic", verbs: operate, do: func(*request) (done, error) { panic("x") }})
		return err
	})
	if err == nil || r.dashboard.hub.lastChange("orders").Before(begun) {
		t.Errorf("the change is not known to the pages: %v", err)
	}
	redistest.Want(t, "audit lines", r.log.Count("action=dashboard.do-panic queue=orders done=false"), 1)
}
