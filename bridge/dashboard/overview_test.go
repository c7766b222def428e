package dashboard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// The overview must show the queues that the token may inspect, with their figures, and no others.
func TestOverviewShowsTheQueuesOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"shop.orders", "shop.mails", "secret"} {
		for range 3 {
			if _, err := r.client.Schedule(t.Context(), queue, []byte("p"), bridge.In(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	v := r.viewer([]access.Verb{access.Inspect}, "shop.*")
	status, text := v.get("")
	redistest.Want(t, "status", status, http.StatusOK)
	for _, want := range []string{`href="queue?queue=shop.orders"`, `href="queue?queue=shop.mails"`, `<data value="6">`} {
		if !strings.Contains(text, want) {
			t.Errorf("the overview lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the overview shows a queue that the token may not see:\n%s", text)
	}
	_, filtered := v.get("?filter=MAIL")
	if strings.Contains(filtered, "queue=shop.orders") || !strings.Contains(filtered, "queue=shop.mails") {
		t.Errorf("the filter does not work:\n%s", filtered)
	}
}

// Sorting by a column must put the largest value first, and the name must order equal values.
func TestOverviewSorts(t *testing.T) {
	t.Parallel()
	rows := []queueRow{{}, {}, {}}
	for i, queue := range []string{"b", "a", "c"} {
		rows[i].Queue, rows[i].Scheduled = queue, []int64{5, 5, 9}[i]
	}
	for _, c := range []struct {
		key  string
		down bool
		want string
	}{
		{"name", false, "abc"}, {"name", true, "cba"}, {"scheduled", true, "cab"}, {"scheduled", false, "abc"},
		{"no such column", false, "abc"},
	} {
		sortRows(rows, c.key, c.down)
		redistest.Want(t, c.key, rows[0].Queue+rows[1].Queue+rows[2].Queue, c.want)
	}
}

// The overview must show how long an entry has waited for a group that does not read, because such messages are late,
// too.
func TestOverviewShowsTheWaitForWorkers(t *testing.T) {
	t.Parallel()
	rows := []queueRow{{Waiting: admin.Millis(time.Minute)}, {Waiting: admin.Millis(2 * time.Minute)}}
	rows[0].Queue, rows[1].Queue = "a", "b"
	sortRows(rows, "waits", true)
	redistest.Want(t, "the longest wait", rows[0].Queue, "b")
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("closer")
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p")); err != nil {
		t.Fatal(err)
	}
	if err := r.op.MakeReady(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	q := &request{Dashboard: r.dashboard, op: r.op, ctx: t.Context()}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		l, err := liveOverview(q)
		if err != nil {
			t.Fatal(err)
		}
		s, err := q.sample(l)
		if err != nil {
			t.Fatal(err)
		}
		g := s.(systemSample).queues[0].Groups[0]
		return g.Waiting != nil && *g.Waiting > 0, "the group does not wait"
	})
	if _, text := v.get(""); !strings.Contains(text, "Waits for workers") {
		t.Errorf("the overview lacks the wait:\n%s", text)
	}
}
