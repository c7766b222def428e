package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// The growth must be confirmed, must tell which limits rise, and must grow the queue in Redis. A smaller number must be
// refused.
func TestQueueGrows(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if err := r.op.Register(t.Context(), r.Queue); err != nil {
		t.Fatal(err)
	}
	r.Policy(map[string]string{"rate": "500/s", "ready_limit": "1000"})
	v := r.viewer(operate, r.Queue)
	page := "queue?queue=" + r.Queue + "&tab=partitions"
	_, text := v.get(page)
	contains(t, text, "1 partition", `name="partitions"`)
	_, text = v.get(page + "&partitions=4")
	contains(t, text, "from 1 to 4 partitions?", "<del>500/s</del>", "<ins>2,000/s</ins>", "<ins>4,000</ins>")
	status, text := v.post("do-queue-grow", hiddenFields(t, text, "do-queue-grow"))
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "has 4 partitions now", `<th scope="row">3</th>`, "1 partition at first")
	counts, err := r.op.Partitions(t.Context(), r.Queue)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "partitions", counts.Latest(), 4)
	for typed, fault := range map[string]string{
		"3": "must be at least 4: a queue never shrinks", "257": "between 1 and 256",
		"many": "must be a whole number", hostileText: "must be a whole number",
	} {
		status, text := v.post("do-queue-grow", url.Values{"queue": {r.Queue}, "partitions": {typed}})
		redistest.Want(t, typed, status, http.StatusBadRequest)
		contains(t, text, fault, `id="fault-partitions"`)
		_, text = v.get(page + "&partitions=" + url.QueryEscape(typed))
		contains(t, text, fault, `id="fault-partitions"`)
		lacks(t, text, "<script>alert")
	}
	_, text = v.get(page + "&partitions=4")
	contains(t, text, "has 4 already", "Repeat the growth")
	status, _ = v.post("do-queue-grow", url.Values{"queue": {r.Queue}, "partitions": {"256"}})
	redistest.Want(t, "status of 256", status, http.StatusOK)
	_, text = v.get(page)
	contains(t, text, `<th scope="row">255</th>`)
}

// A queue that holds messages with a key must not grow without consent, and the page must explain why.
func TestKeyedQueueGrowsOnlyWithConsent(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.In(time.Hour), bridge.Key("k")); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	form := url.Values{"queue": {r.Queue}, "partitions": {"2"}}
	status, text := v.post("do-queue-grow", form)
	redistest.Want(t, "status", status, http.StatusConflict)
	contains(t, text, "would not wait for the old ones", `name="despite" value="keys"`, `name="partitions" value="2"`)
	counts, err := r.op.Partitions(t.Context(), r.Queue)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "partitions", counts.Latest(), 1)
	form.Set("despite", "keys")
	status, _ = v.post("do-queue-grow", form)
	redistest.Want(t, "status with consent", status, http.StatusOK)
	counts, err = r.op.Partitions(t.Context(), r.Queue)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "partitions with consent", counts.Latest(), 2)
}

// A queue must be deleted only after its name was typed, and with its contents only if that was asked for.
func TestQueueIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	if _, err := r.client.Schedule(t.Context(), r.Queue, nil, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	v := r.viewer(operate, r.Queue)
	_, text := v.get("queue?queue=" + r.Queue + "&tab=delete")
	contains(t, text, `data-confirms="`+r.Queue+`"`, "do-queue-delete")
	status, text := v.post("do-queue-delete", url.Values{"queue": {r.Queue}, "confirm": {hostileText}, "force": {"yes"}})
	redistest.Want(t, "status with another name", status, http.StatusBadRequest)
	contains(t, text, `id="fault-confirm"`, "must be "+r.Queue)
	lacks(t, text, "<script>alert")
	status, text = v.post("do-queue-delete", url.Values{"queue": {r.Queue}, "confirm": {r.Queue}})
	redistest.Want(t, "status of a queue that is not empty", status, http.StatusConflict)
	contains(t, text, "it holds 1 scheduled", "The queue is not empty.", `value="`+r.Queue+`" autocomplete="off"`)
	redistest.Want(t, "scheduled", r.Number("ZCARD", r.Keys.Due), 1)
	status, text = v.post("do-queue-delete", url.Values{"queue": {r.Queue}, "confirm": {r.Queue}, "force": {"yes"}})
	redistest.Want(t, "status", status, http.StatusOK)
	contains(t, text, "was deleted, with 1 scheduled.")
	redistest.Want(t, "keys that are left", r.Exists(r.Keys.Due, r.Keys.Meta, r.Keys.Payload, r.Keys.Stream), 0)
	status, _ = v.get("queue?queue=" + r.Queue)
	redistest.Want(t, "status of the page after that", status, http.StatusNotFound)
}

// Only an operator of the queue may grow and delete it.
func TestGrowthAndDeletionAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	r.Fill(1)
	for name, v := range map[string]*viewer{
		"inspect": r.viewer(inspect, "*"), "publish": r.viewer(publish, "*"), "another queue": r.viewer(operate, "other"),
	} {
		form := url.Values{"queue": {r.Queue}, "partitions": {"2"}, "confirm": {r.Queue}, "force": {"yes"}}
		for _, action := range []string{"do-queue-grow", "do-queue-delete"} {
			status, _ := v.post(action, form)
			redistest.Want(t, name+": "+action, status, http.StatusForbidden)
		}
		if name != "another queue" {
			_, text := v.get("queue?queue=" + r.Queue + "&tab=delete")
			lacks(t, text, "do-queue-delete")
			_, text = v.get("queue?queue=" + r.Queue + "&tab=partitions&partitions=2")
			lacks(t, text, "do-queue-grow", `name="partitions"`)
		}
	}
	counts, err := r.op.Partitions(t.Context(), r.Queue)
	redistest.Want(t, "error", err, nil)
	redistest.Want(t, "partitions", counts.Latest(), 1)
	redistest.Want(t, "entries", r.Number("XLEN", r.Keys.Stream), 1)
}
