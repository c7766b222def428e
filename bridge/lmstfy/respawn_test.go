package lmstfy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A dead job is respawned although the dedup window of its ID is open, and so are the dead jobs behind it. Such windows
// are usual: `duestream migrate lmstfy` opens one of a week for each job. Regression: the ID was refused as a
// duplicate, the answer was a count of 0, and with limit 1 no other dead job of the queue was ever respawned.
func TestADeadJobIsRespawnedWithinItsDedupWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r.r, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.Schedule(t.Context(), "ns:q", []byte("remembered"), bridge.WithID("order-42"),
		bridge.Dedup(time.Hour), bridge.MaxAttempts(1), bridge.Header("attr-n", "1"))
	if err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "the first job", r.get("q", 1).ID, first.ID)
	r.dead("q", 1)
	second := r.publish("q", "", 60, 1, 0)
	redistest.Want(t, "the second job", r.get("q", 1).ID, second)
	r.dead("q", 2)
	for _, want := range []string{first.ID, second} {
		redistest.Want(t, "respawned", r.do("PUT", "/api/ns/q/deadletter?ttl=60", "").body, `{"count":1,"msg":"respawned"}`)
		job := r.get("q", 60)
		redistest.Want(t, "job", job.ID, want)
		redistest.Want(t, "tries left", job.RemainTries, int64(0))
		redistest.Want(t, "ttl", job.TTL > 50 && job.TTL <= 60, true)
		redistest.Want(t, "attribute", job.Attributes["n"] == "1", want == first.ID)
		redistest.Want(t, "data", string(job.Data) == "remembered", want == first.ID)
		r.ok(r.Ack("q", want))
	}
	r.dead("q", 0)
	r.none("q")
}

// A respawned job that no consumer has yet can be acknowledged at every gateway.
func TestARespawnedJobIsAcknowledgedAtEveryGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := r.base
	other, _ := r.listen()
	id := r.publish("q", "x", 60, 1, 0)
	r.get("q", 1)
	r.dead("q", 1)
	redistest.Want(t, "respawned", r.do("PUT", "/api/ns/q/deadletter", "").body, `{"count":1,"msg":"respawned"}`)
	r.base = other
	redistest.Want(t, "acknowledged", r.do("DELETE", "/api/ns/q/job/"+id, "").status, 204)
	for _, base := range []string{mine, other} {
		r.base = base
		redistest.Want(t, "status of a consume", r.do("GET", "/api/ns/q?ttr=60", "").status, 404)
		if got := r.do("GET", "/api/ns/q/job/"+id, ""); got.status != 404 || !strings.Contains(got.body, "job not found") {
			t.Errorf("peeked: %+v", got)
		}
	}
}

// A dead job is respawned although somebody destroyed the group.
func TestADeadJobIsRespawnedWithoutItsGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.publish("q", "x", 60, 1, 0)
	r.get("q", 1)
	r.dead("q", 1)
	destroy := r.r.Client.B().XgroupDestroy().Key(lua.NewKeys(r.prefix, "ns:q").Stream).Group(lmstfy.Group).Build()
	if err := r.r.Client.Do(t.Context(), destroy).Error(); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "respawned", r.do("PUT", "/api/ns/q/deadletter", "").body, `{"count":1,"msg":"respawned"}`)
	redistest.Want(t, "job", r.get("q", 60).ID, id)
}
