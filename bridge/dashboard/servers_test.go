package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// The page must show the server, and who holds messages of a group.
func TestSystemShowsServerAndWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Groups("closer")
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p")); err != nil {
		t.Fatal(err)
	}
	r.DrainAll()
	r.Take("closer", "host-7", 1)
	text := r.viewer([]access.Verb{access.Inspect}, "*").eventuallyShows("servers", "host-7")
	for _, want := range []string{"Append-only file", "deletes nothing", ">closer<"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	_, text = r.viewer([]access.Verb{access.Inspect}, r.Queue).get("servers")
	if strings.Contains(text, "Append-only file") || !strings.Contains(text, ">closer<") {
		t.Errorf("a token of one queue must see the workers of that queue, and not the server:\n%s", text)
	}
}

// An examination must report a defect, and a repair must mend it. A token that only inspects must not repair.
func TestExaminationFindsAndMends(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, []byte("p"), bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r.Do("HDEL", r.Prefix+":queues", r.Queue) // no bridge would find the queue
	inspector := r.viewer([]access.Verb{access.Inspect}, "*")
	if status, text := inspector.post("do-examine", url.Values{"back": {"servers"}}); status != http.StatusOK {
		t.Fatal(text)
	}
	text := inspector.eventuallyShows("servers", "A repair:")
	if strings.Contains(text, "do-mend") {
		t.Error("a token that only inspects sees the button of the repair")
	}
	status, _ := inspector.post("do-mend", nil)
	redistest.Want(t, "a repair by a token that only inspects", status, http.StatusForbidden)

	operator := r.viewer([]access.Verb{access.Operate}, "*")
	_, text = operator.get("servers")
	form := formOf(text)
	first := form.Get("examined")
	if status, text := operator.post("do-examine", url.Values{"back": {"servers"}}); status != http.StatusOK {
		t.Fatal(text)
	}
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		_, text = operator.get("servers")
		form = formOf(text)
		return form.Has("examined") && form.Get("examined") != first, text
	})
	status, text = operator.post("do-mend", url.Values{"back": {"servers"}, "examined": {first}})
	redistest.Want(t, "a repair after another examination", status, http.StatusConflict)
	contains(t, text, "the report on your page is not the last one")
	if status, text := operator.post("do-mend", form); status != http.StatusOK {
		t.Fatal(text)
	}
	operator.eventuallyShows("servers", "Repairs</h3>")
	queues, err := r.op.Queues(t.Context())
	if err != nil || len(queues) != 1 || queues[0] != r.Queue {
		t.Errorf("queues after the repair: %v, %v", queues, err)
	}
	redistest.Want(t, "audit lines of repairs", r.log.Count("dashboard.repair"), 1)
	status, text = operator.post("do-mend", form)
	redistest.Want(t, "a repair without a report", status, http.StatusConflict)
	contains(t, text, "Examine the system first")
}

// A second examination at the same time must be refused as a conflict, and one after Close as a process that stops.
func TestASecondExaminationIsRefused(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	e := &examiner{}
	end := make(chan struct{})
	if err := e.begin(ctx, time.Minute, nil, func(context.Context) { <-end }); err != nil {
		t.Fatal(err)
	}
	err := e.begin(ctx, time.Minute, nil, func(context.Context) {})
	redistest.Want(t, "status of a second one", newFailure(err).Status, http.StatusConflict)
	stop()
	err = e.begin(ctx, time.Minute, nil, func(context.Context) {})
	redistest.Want(t, "status after Close", newFailure(err).Status, http.StatusServiceUnavailable)
	close(end)
	e.work.Wait()
}

// A server without an append-only file and without a snapshot since its start must not look as if it kept its data.
func TestSystemSaysThatNothingIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t, "--appendonly", "no", "--save", ""), nil)
	_, text := r.viewer([]access.Verb{access.Inspect}, "*").get("servers")
	for _, want := range []string{"none since the start", "writes nothing to disk"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

// An update of the page of the system must hold only the rows that changed: a system may have thousands of groups.
func TestAnUpdateOfTheSystemHoldsOnlyItsChangedRows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.Groups("a", "b")
	r.Fill(1)
	stream := r.viewer([]access.Verb{access.Inspect}, r.Queue).watch("live-servers")
	_, update := stream.next()
	contains(t, update, `<tr id="worker-1">`)
	r.Take("b", "worker-7", 1)
	_, update = stream.next()
	contains(t, update, `[id='worker-1']`, "worker-7")
	lacks(t, update, `[id='servers-live']`, `id="worker-0"`)
}
