package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// request returns a request of a viewer, as an action gets it.
func (r *rig) request(v *viewer) *request {
	r.T.Helper()
	address, err := url.Parse(v.base)
	if err != nil {
		r.T.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.T.Context(), http.MethodPost, v.base, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	for _, cookie := range v.http.Jar.Cookies(address) {
		req.AddCookie(cookie)
	}
	g, err := r.dashboard.grant(req)
	if err != nil {
		r.T.Fatal(err)
	}
	return &request{Dashboard: r.dashboard, op: r.op, r: req, ctx: req.Context(), grant: g, known: time.Now(),
		query: url.Values{}}
}

// steps is a job that waits for the test. It counts its steps, and finishes a running step when its context ends.
type steps struct {
	next  chan struct{} // each element lets the job take a step; closed = the job is complete
	begun chan struct{} // each element tells that a step was taken
}

func newSteps() *steps { return &steps{make(chan struct{}), make(chan struct{}, 100)} }

func (s *steps) spec(verbs []access.Verb, queues ...string) jobSpec {
	return jobSpec{kind: "cancel", title: "Cancel what matches", queues: queues, verbs: verbs, back: "job?a=b",
		run: func(ctx context.Context, report func(jobCounts)) error {
			var c jobCounts
			for {
				select {
				case _, more := <-s.next:
					if !more {
						return nil
					}
					c.Looked++
					c.Changed++
					c.Total = 10
					report(c)
					s.begun <- struct{}{}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}}
}

// A job must go on after its request has ended, show its counts, and keep its result. The audit log must have a line
// for its begin, and one with the counts for its end.
func TestAJobRunsInTheBackground(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "shop.*")
	s := newSteps()
	page, err := r.request(v).startJob(s.spec([]access.Verb{access.Operate}, "shop.orders"))
	if err != nil {
		t.Fatal(err)
	}
	s.next <- struct{}{}
	<-s.begun
	text := v.eventuallyShows(page, `<data value="1">1</data> of <data value="10">`)
	if !strings.Contains(text, "Stop</button>") {
		t.Errorf("a running job has no button to stop it:\n%s", text)
	}
	if _, text := v.get(""); !strings.Contains(text, "1 change is running") {
		t.Errorf("the overview does not tell of the running job:\n%s", text)
	}
	close(s.next)
	text = v.eventuallyShows(page, "Done: 1 message was changed.")
	if strings.Contains(text, "Stop</button>") || !strings.Contains(text, `href="job?a=b"`) {
		t.Errorf("the page of a job that has ended is wrong:\n%s", text)
	}
	redistest.Want(t, "lines of the begin", r.log.Count("dashboard.job-begin"), 1)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { // the line is written after the page tells the end
		return r.log.Count("dashboard.job-end") > 0, "no line of the end"
	})
	end := r.log.Lines("dashboard.job-end")
	if len(end) != 1 || !strings.Contains(end[0], "changed=1") || !strings.Contains(end[0], "outcome=done") {
		t.Errorf("the lines of the end are wrong: %q", end)
	}
}

// A viewer must be able to stop a job. Another viewer must not see it, unless he operates all its queues.
func TestOnlyItsTokenAndOperatorsStopAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	owner := r.viewer([]access.Verb{access.Inspect, access.Publish}, "shop.*")
	reader := r.viewer([]access.Verb{access.Inspect, access.Publish}, "*")
	operatorOfOne := r.viewer([]access.Verb{access.Operate}, "shop.orders")
	operator := r.viewer([]access.Verb{access.Operate}, "shop.*")
	for _, stopper := range []*viewer{owner, operator} {
		s := newSteps()
		page, err := r.request(owner).startJob(s.spec([]access.Verb{access.Publish}, "shop.orders", "shop.mails"))
		if err != nil {
			t.Fatal(err)
		}
		_, query, _ := strings.Cut(page, "?")
		form, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []*viewer{reader, operatorOfOne} {
			status, _ := other.get(page)
			redistest.Want(t, "status of another viewer's page", status, http.StatusForbidden)
			status, _ = other.post("do-stop-job", form)
			redistest.Want(t, "status of another viewer's stop", status, http.StatusForbidden)
		}
		stopper.eventuallyShows(page, "Stop</button>")
		if status, text := stopper.post("do-stop-job", form); status != http.StatusOK {
			t.Fatalf("stop: %d\n%s", status, text)
		}
		owner.eventuallyShows(page, "Stopped. What was changed stays changed.")
	}
}

// A job must stop within seconds after its token was revoked.
func TestARevokedTokenStopsItsJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "shop.*")
	operator := r.viewer([]access.Verb{access.Operate}, "*")
	q := r.request(v)
	page, err := q.startJob(newSteps().spec([]access.Verb{access.Operate}, "shop.orders"))
	if err != nil {
		t.Fatal(err)
	}
	operator.eventuallyShows(page, "Running.")
	if err := r.op.RemoveToken(t.Context(), q.grant.Name()); err != nil {
		t.Fatal(err)
	}
	operator.eventuallyShows(page, "its token was revoked")
}

// A job that the token does not allow on each of its queues must be refused, and so must one above the limits.
func TestJobsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect, access.Publish}, "shop.*")
	s := newSteps()
	for _, spec := range []jobSpec{
		s.spec([]access.Verb{access.Publish}, "shop.orders", "other"), s.spec([]access.Verb{access.Publish}),
		s.spec([]access.Verb{access.Operate}, "shop.orders"),
	} {
		if _, err := r.request(v).startJob(spec); !errors.Is(err, errForbidden) {
			t.Errorf("a job on %v with %v: got %v, want %v", spec.queues, spec.verbs, err, errForbidden)
		}
	}
	start := func(v *viewer) error {
		_, err := r.request(v).startJob(s.spec([]access.Verb{access.Publish}, "shop.orders"))
		return err
	}
	var busy tooManyJobs
	left := maxJobs
	for left > 1 { // each further token gets half of what is left
		token := r.viewer([]access.Verb{access.Inspect, access.Publish}, "shop.*")
		for range left / 2 {
			if err := start(token); err != nil {
				t.Fatal(err)
			}
		}
		left -= left / 2
		err := start(token)
		if !errors.As(err, &busy) || busy.who != "your token" {
			t.Errorf("one job of a token too many: got %v", err)
		}
	}
	if err := start(v); err != nil {
		t.Errorf("the last job: %v", err)
	}
	if err := start(v); !errors.As(err, &busy) || busy.who != "this process" {
		t.Errorf("one job too many: got %v", err)
	}
}

// Close must end the jobs, and wait until each has finished its running step.
func TestCloseWaitsForJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "*")
	var finished bool
	spec := newSteps().spec([]access.Verb{access.Operate}, "a")
	spec.run = func(ctx context.Context, report func(jobCounts)) error {
		<-ctx.Done()
		finished = true
		return ctx.Err()
	}
	if _, err := r.request(v).startJob(spec); err != nil {
		t.Fatal(err)
	}
	if err := r.dashboard.Close(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "finished", finished, true)
	if _, err := r.request(v).startJob(spec); !errors.Is(err, errStops) {
		t.Errorf("a job after Close: got %v", err)
	}
}

// The page of a job that this process does not know must say so, and lead back to the search.
func TestAJobOfAnotherProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	status, text := v.get("job?job=NONE&back=job%3Fa%3Db")
	redistest.Want(t, "status", status, http.StatusNotFound)
	if !strings.Contains(text, "ran in another process") || !strings.Contains(text, `href="job?a=b"`) {
		t.Errorf("the page does not say where the job is:\n%s", text)
	}
}

// A failed job must show its error, and offer what follows. The viewer's confirmation must not be filled in.
func TestAFailedJobOffersToGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer([]access.Verb{access.Operate}, "*")
	spec := newSteps().spec([]access.Verb{access.Operate}, "a")
	spec.run = func(_ context.Context, report func(jobCounts)) error {
		report(jobCounts{Changed: 3})
		return errors.New("<b>broken</b>")
	}
	spec.next = &jobNext{Path: "do-search", Fields: []jobField{{"query", `q="<i>`}}, Button: "Cancel", Confirm: "purge"}
	page, err := r.request(v).startJob(spec)
	if err != nil {
		t.Fatal(err)
	}
	text := v.eventuallyShows(page, "Failed: &lt;b&gt;broken&lt;/b&gt;")
	for _, want := range []string{
		`action="do-search"`, `value="q=&#34;&lt;i&gt;"`, `data-confirms="purge"`, "Cancel\nthe rest",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

// away is an Access whose Redis does not answer.
type away struct{ Access }

func (away) Authenticate(context.Context, string) (*access.Grant, error) {
	return nil, lua.ErrUnavailable
}

// A job, a search and a stream must not go on for ever while nobody can tell whether their token was revoked.
func TestATokenThatCannotBeCheckedIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(access.Verbs(), "*"))
	q.Dashboard = &Dashboard{cfg: Config{Access: away{}}}
	spec := newSteps().spec(access.Verbs(), r.Queue)
	topic := &topic{parts: map[partKey]*cachedPart{}, last: sample{value: 1}}
	l := &live{topic: "t", part: "overview-live", data: func(any) (any, error) { return nil, errors.New("reached") }}
	if err := q.recheck(t.Context(), "secret", spec); err != nil || q.refusesSearch(admin.SearchFilter{}) {
		t.Errorf("a job within the grace: %v", err)
	}
	q.known = time.Now().Add(-2 * access.Grace)
	redistest.Want(t, "refused job", q.recheck(t.Context(), "secret", spec), errJobRefused)
	redistest.Want(t, "refused search", q.refusesSearch(admin.SearchFilter{}), true)
	text, part, ended := q.event(page{template: "overview"}, l, topic, topic.result(), nil)
	if !strings.HasPrefix(string(text), "event: away") || part != nil || ended {
		t.Errorf("the event of a stream is %q", text)
	}
}

// A viewer who leaves is no fault, and neither is a job that begins while the process stops.
func TestALeavingViewerIsNoFault(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.dashboard.fail(w, req, r.request(v), fmt.Errorf("read: %w", context.Canceled))
	if w.Body.Len() > 0 || r.log.Count("a request of the dashboard failed") > 0 {
		t.Errorf("the answer is %d, with an error in the log", w.Code)
	}
	q := r.request(v)
	if err := r.dashboard.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := q.startJob(newSteps().spec(access.Verbs(), r.Queue))
	redistest.Want(t, "status of a job while the process stops", newFailure(err).Status, http.StatusServiceUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q.ctx = ctx
	_, err = q.sample(&live{topic: "t", look: func(context.Context) (sample, error) { return sample{}, nil }})
	redistest.Want(t, "error of a page while the process stops", err, errStops)
}

// The audit log must name what an action is about.
func TestTheAuditNamesTheSubject(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	v.post("do-add-token", url.Values{"token": {"night-shift"}, "verb": {"inspect"}, "queue": {"*"}})
	redistest.Want(t, "lines with the token", r.log.Count("token_name=night-shift"), 1)
	redistest.Want(t, "lines of the new token", r.log.Count("token=night-shift"), 0)
}

// A job must keep little of a form, because its page has the form that follows. Regression: a hit of 4 MiB stayed in
// memory for an hour, and each viewer of the job got it.
func TestAJobKeepsLittleOfItsForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	post := func(hits ...string) (int, string) {
		return v.post("do-search", url.Values{"which": {whichChosen}, "kind": {"cancel"}, "hit": hits, "query": {"q=x"}})
	}
	hit := func(id, more string) string {
		return fmt.Sprintf(`{"queue":%q,"state":"scheduled","id":%q%s}`, r.Queue, id, more)
	}
	status, text := post(hit("x", fmt.Sprintf(`,"error":%q`, strings.Repeat("e", maxPlaceBytes))))
	redistest.Want(t, "status of a large hit", status, http.StatusBadRequest)
	contains(t, text, "must be at most 8192 bytes")
	var many []string
	for i := range 100 {
		many = append(many, hit(fmt.Sprint(strings.Repeat("i", 4<<10), i), ""))
	}
	status, text = post(many...)
	redistest.Want(t, "status of many large hits", status, http.StatusBadRequest)
	contains(t, text, "select fewer messages")
	h := redistest.Must(readPlace(hit("x", `,"error":"kept","headers":{"a":"b"}`)))
	if h.Error != "" || h.Headers != nil || h.ID != "x" {
		t.Errorf("a place is read as %+v", h)
	}
	if status, _ := post(hit("x", `,"error":"kept"`)); status != http.StatusOK {
		t.Errorf("status of a small hit: %d", status)
	}
	r.dashboard.jobs.mu.Lock()
	defer r.dashboard.jobs.mu.Unlock()
	redistest.Want(t, "jobs", len(r.dashboard.jobs.all), 1)
	for _, j := range r.dashboard.jobs.all {
		for _, f := range j.next.Fields {
			lacks(t, f.Value, "kept")
		}
	}
}
