package dashboard

import (
	"bytes"
	"crypto/rand"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// contains fails the test unless a page has all these texts.
func contains(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, want := range texts {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// lacks fails the test if a page has one of these texts.
func lacks(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, unwanted := range texts {
		if strings.Contains(page, unwanted) {
			t.Errorf("the page has %q:\n%s", unwanted, page)
		}
	}
}

var (
	inspect = []access.Verb{access.Inspect}
	operate = []access.Verb{access.Operate}
	publish = []access.Verb{access.Inspect, access.Publish}
)

// The page of a queue must show its sizes, its groups with their backlogs, and what to do about it.
func TestQueueShowsSizesGroupsAndAdvice(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("sender", "<b>hostile</b>")
	r.Fill(3)
	r.Take("sender", "worker-1", 2)
	if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.In(time.Hour), bridge.WithID("next")); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, r.Queue)
	status, text := v.get("queue?queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "<h1>"+r.Queue+"</h1>", `tab=consumers">sender</a>`, "&lt;b&gt;hostile&lt;/b&gt;",
		`tab=due"><data value="1">`,
		`<dt>Ready</dt><dd><data value="3">`, "id=next", `id="advice">Advice</h2>`)
	lacks(t, text, "<b>hostile", "do-queue-pause")
	status, text = v.get("live-queue?queue=" + r.Queue + "x")
	redistest.Want(t, "status of the updates of another queue", status, http.StatusForbidden)
	lacks(t, text, "event:")
}

// A queue that does not exist must give 404, with the nearest name.
func TestUnknownQueueSuggestsTheNearestName(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, "*")
	status, text := v.get("queue?queue=ordres")
	redistest.Want(t, "status", status, http.StatusNotFound)
	contains(t, text, "no such queue", "did you mean &#34;orders&#34;?")
	for _, page := range []string{"live-queue?queue=ordres", "live-message?id=a&queue=ordres"} { // no topic of any name
		status, _ := v.get(page)
		redistest.Want(t, page, status, http.StatusNotFound)
	}
	status, text = v.get("queue?queue=" + url.QueryEscape("<script>"))
	redistest.Want(t, "status of an invalid name", status, http.StatusBadRequest)
	lacks(t, text, "<script>")
	status, _ = v.get("queue")
	redistest.Want(t, "status without a name", status, http.StatusBadRequest)
}

// Pause, pause workers and resume must change the policy in Redis, and only for a token that may operate the queue.
func TestQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	page := "queue?queue=" + r.Queue
	form := url.Values{"queue": {r.Queue}, "back": {page}}
	held := func(what string, queue, workers bool) {
		t.Helper()
		p, _, err := r.op.ReadPolicy(t.Context(), r.Queue, "")
		if err != nil || p.Held != queue || p.HeldWorkers != workers {
			t.Errorf("%s: held %v, workers %v, %v", what, p.Held, p.HeldWorkers, err)
		}
	}
	for name, v := range map[string]*viewer{
		"inspect": r.viewer(inspect, "*"), "publish": r.viewer(publish, "*"), "another queue": r.viewer(operate, "other"),
	} {
		for _, action := range []string{"do-queue-pause", "do-queue-pause-workers", "do-queue-resume"} {
			status, _ := v.post(action, form)
			redistest.Want(t, name+": "+action, status, http.StatusForbidden)
		}
	}
	held("after refusals", false, false)
	v := r.viewer(operate, r.Queue)
	status, text := v.post("do-queue-pause", form)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, r.Queue+" is paused", `<span class="badge warn">paused</span>`,
		"do-queue-resume", "do-queue-pause-workers")
	held("after pause", true, false)
	_, text = v.post("do-queue-pause", form)
	contains(t, text, "already in this state")
	_, text = v.post("do-queue-pause-workers", form)
	contains(t, text, `<span class="badge warn">workers paused</span>`)
	held("after pause of workers", true, true)
	_, text = v.post("do-queue-resume", form)
	contains(t, text, "is resumed")
	lacks(t, text, "badge warn")
	held("after resume", false, false)
	redistest.Want(t, "lines of the audit log", r.log.Count("action=dashboard.do-queue-pause-workers queue="+r.Queue), 1)
}

// The page must show a queue with 256 partitions, and its figures must be those of all partitions together.
func TestQueueWithManyPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.op.SetPartitions(t.Context(), r.Queue, lua.MaxPartitions, nil); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.In(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	v := r.viewer(inspect, r.Queue)
	status, text := v.get("queue?queue=" + r.Queue)
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, `tab=due"><data value="50">`, `tab=partitions"><data value="256">`)
}

// Figures must be shown in full, however large they are, and a figure that is not known must not look like zero.
func TestQueueShowsLargeAndUnknownFigures(t *testing.T) {
	t.Parallel()
	held := admin.Millis(400 * 24 * time.Hour)
	v := queueView{Queue: "q", State: queueState{
		Now: admin.QueueSample{
			Sizes:      sizesOf(math.MaxInt64),
			Partitions: 256,
		},
		Series: queueSeries{At: []int64{1}, Span: []float64{1}, In: []float64{1_234_567.8}, Out: []float64{math.NaN()},
			Done: []float64{0}},
		Groups: []queueGroup{{GroupSample: admin.GroupSample{
			GroupSizes: admin.GroupSizes{Name: "g", Lag: math.MaxInt64, LagApprox: true, Pending: 9_007_199_254_740_993},
			OldestHeld: &held, Holder: strings.Repeat("w", 300), RetryingMore: true,
		}}},
	}}
	var out bytes.Buffer
	if err := templates["queue"].ExecuteTemplate(&out, "queue-overview", frame{Data: v}); err != nil {
		t.Fatal(err)
	}
	contains(t, out.String(), `<data value="9223372036854775807">9,223,372,036,854,775,807</data>`, "≈<data",
		`<data value="9007199254740993">9,007,199,254,740,993</data>`, "400d", "1,234,568", "≥ <data",
		"<dt>Ready/s</dt><dd>–</dd>", "<dt>Done/s</dt><dd>0</dd>", `title="`+strings.Repeat("w", 300)+`"`)
}

// The overview must name the group that waits longest for workers, and only a long wait must look like a problem.
func TestQueueShowsTheLongestWaitForWorkers(t *testing.T) {
	t.Parallel()
	short, long := admin.Millis(2*time.Second), admin.Millis(7*time.Minute)
	group := func(name string, waiting *admin.Millis) queueGroup {
		return queueGroup{GroupSample: admin.GroupSample{GroupSizes: admin.GroupSizes{Name: name, Waiting: waiting}}}
	}
	s := queueState{Groups: []queueGroup{group("none", nil), group("short", &short), group("long", &long)}}
	redistest.Want(t, "slowest", s.Waits().Name, "long")
	redistest.Want(t, "long is slow", s.Waits().IsSlow(), true)
	redistest.Want(t, "short is slow", s.Groups[1].IsSlow(), false)
	s.Groups = s.Groups[:1]
	redistest.Want(t, "no group waits", s.Waits() == nil, true)
}

func sizesOf(n int64) admin.Sizes {
	return admin.Sizes{Scheduled: n, Overdue: n, Ready: n, ReadyApprox: true, Dead: n, Entries: n}
}

// A viewer of some queues must see that no bridge is alive, because then nothing becomes ready, and no other advice
// about what concerns all queues.
func TestQueueHidesAdviceAboutTheWholeSystem(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := &request{Dashboard: r.dashboard, query: url.Values{"queue": {r.Queue}}}
	state := queueState{Findings: []doctor.Finding{
		{Name: "no-bridge"}, {Name: "mixed-levels"}, {Name: "no-group", Queue: r.Queue},
	}}
	for queues, want := range map[string]string{"*": "no-bridge mixed-levels no-group", r.Queue: "no-bridge no-group"} {
		token := access.Token{Name: "n-" + rand.Text(), Verbs: inspect, Queues: []string{queues}}
		secret, err := r.op.AddToken(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		if q.grant, err = r.dashboard.cfg.Access.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range q.queueView(state).State.Findings {
			names = append(names, f.Name)
		}
		redistest.Want(t, queues, strings.Join(names, " "), want)
	}
	redistest.Want(t, "findings of the sample", len(state.Findings), 3)
}

// A queue that somebody deletes must not look like an empty queue to others who watch it, and the buttons of their
// pages must not create settings of it again.
func TestADeletedQueueIsGoneForItsOtherViewers(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, "*")
	other := v.watch("live-queue?queue=" + r.Queue)
	_, update := other.next()
	contains(t, update, "do-queue-pause")
	_, page := v.post("do-queue-delete", url.Values{"queue": {r.Queue}, "confirm": {r.Queue}})
	contains(t, page, r.Queue+" was deleted.")
	name, update := other.next()
	redistest.Want(t, "event", name, "update")
	contains(t, update, "does not exist any more")
	lacks(t, update, "do-queue-pause", "tab=settings")
	for _, action := range []string{"pause", "pause-workers", "resume", "settings", "grow"} {
		status, _ := v.post("do-queue-"+action, url.Values{"queue": {r.Queue}, "rate": {"5/s"}, "partitions": {"3"}})
		redistest.Want(t, "status of "+action, status, http.StatusNotFound)
	}
	redistest.Want(t, "keys", len(r.Texts("KEYS", "*{"+r.Queue+"*")), 0)
	names, err := r.op.Queues(t.Context())
	redistest.Want(t, "registered", slices.Contains(names, r.Queue), false)
	redistest.Want(t, "error", err, nil)
}
