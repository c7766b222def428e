package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// retry schedules a retry of a group, whose last attempt failed with an error.
func (r *rig) retry(id, group, message string) {
	member := strings.Join([]string{id, group, "1-1"}, lua.Separator)
	r.Do("HSET", r.Keys.Meta, member, fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2","error":%q}`, id, group, message))
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), member)
}

// The page of a queue must tell with which errors messages are being retried, hours before they are dead. Viewers share
// one bounded reading. A row leads to its messages.
func TestDeadTellsWhatIsBeingRetried(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRig(t, server, nil)
	defer r.rendered()
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(inspect, r.Queue)
	_, text := v.get("dead?queue=" + r.Queue)
	lacks(t, text, "Being retried")

	other := newRig(t, server, nil)
	if err := other.op.Register(t.Context(), other.Queue); err != nil {
		t.Fatal(err)
	}
	other.Groups("fulfil", "mail")
	for i := range 3 {
		other.retry(fmt.Sprint("m-", i), "fulfil", fmt.Sprintf("order-%d: <b>503</b> of globex", i))
	}
	other.retry("n", "mail", "no such address")
	v = other.viewer(inspect, other.Queue)
	before := server.Calls(t)
	for range 20 {
		_, text = v.get("dead?queue=" + other.Queue)
	}
	contains(t, text, "Since at least", `<time datetime="1970-01-01T00:00:00.001Z"`)
	contains(t, text, "Being retried", "order-#: &lt;b&gt;503&lt;/b&gt; of globex", "no such address", ">fulfil<",
		`<data value="3">3</data>`, "state=retrying")
	if n := server.Calls(t)["zscan"] + server.Calls(t)["hscan"] - before["zscan"] - before["hscan"]; n > 10 {
		t.Errorf("20 views scanned %d times", n)
	}
	v.eventuallyShows("dead", "Errors of "+other.Queue+"</a>") // the page of all queues leads there
	v.eventuallyShows("", "dead?queue="+other.Queue+`#retries">`)
	s, err := other.op.Retries(t.Context(), other.Queue, 2, time.Minute)
	if err != nil || s.Looked != 2 || s.Complete {
		t.Errorf("a look at two retries: %+v, %v", s, err)
	}
	view := &retriesView{s, other.Queue, nil}
	href, err := view.Search(admin.RetryGroup{Group: "fulfil", Error: "order-#: 503 of globex"})
	if err != nil || !strings.Contains(href, "503+of+globex") && !strings.Contains(href, "503%20of%20globex") {
		t.Errorf("the row leads to %s, %v", href, err)
	}
}

// A browser that says that it has changed something must not make each view read the retries. Regression: two viewers
// with such a cookie kept the server busy for a third of the time.
func TestAChangeDoesNotReadTheRetriesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.retry("a", "mail", "no such address")
	q := r.request(r.viewer(inspect, r.Queue))
	redistest.Want(t, "retries", q.retriesOfQueue(r.Queue).Looked, 1)
	r.dashboard.retriesOf.entry(r.Queue).took = time.Hour // so that the reading stays fresh
	r.retry("b", "mail", "no such address")
	q.r.AddCookie(&http.Cookie{Name: changedCookie, Value: "1"})
	r.dashboard.hub.changed(r.Queue)
	redistest.Want(t, "retries after a change", q.retriesOfQueue(r.Queue).Looked, 1)
}

// Readings of the retries of many queues must not keep the server busy for one token. Regression: each queue was read
// on its own, and each reading uses a third of the server's time.
func TestATokenReadsTheRetriesOfOneQueueAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), func(c *Config) { c.Timeout = time.Second })
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.retry("a", "mail", "no such address")
	v, other := r.viewer(inspect, r.Queue), r.viewer(inspect, r.Queue)
	reading, end := make(chan struct{}), make(chan struct{})
	ended := make(chan error)
	go func() {
		ended <- r.dashboard.retryTime.do(t.Context(), r.request(v).grant.Name(), 0, 0, func() error {
			close(reading)
			<-end
			return nil
		})
	}()
	<-reading
	status, text := v.get("dead?queue=" + r.Queue)
	redistest.Want(t, "status of the page", status, http.StatusOK)
	contains(t, text, "your token asks for too much at once")
	_, text = other.get("dead?queue=" + r.Queue)
	contains(t, text, "no such address")
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// While only a part of the letters is read, a row must not claim to know the oldest letter.
func TestARowOfAPartlyReadQueueIsNotComplete(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	q := r.request(r.viewer(inspect, "*"))
	for _, looked := range []int{1, 2} {
		summary := admin.LetterSummary{Looked: looked, Total: 2, Complete: looked == 2,
			Groups: []admin.LetterGroup{{Group: "g", Count: looked}}}
		one := deadSummary{Queue: r.Queue, Total: 2, LetterSummary: summary, At: time.Now()}
		v := q.deadView(deadState{queues: []deadSummary{one}})
		redistest.Want(t, "complete", v.Rows[0].Complete, looked == 2)
	}
}
