package lmstfy_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	official "github.com/bitleak/lmstfy/client"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// lmstfy's client publishes, consumes, peeks at and acknowledges jobs.
func TestTheClientPublishesAndConsumes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ConfigRetry(2, 10)
	r.none("q")
	id := r.publish("q", "one\x00\xff", 60, 3, 0)
	if _, err := r.PublishJob(&official.JobRequest{Queue: "q", Data: []byte("two"), Tries: 2, TTL: 0}); err != nil {
		t.Fatal(err)
	}
	n, failed := r.QueueSize("q")
	r.ok(failed)
	redistest.Want(t, "size", n, 2)
	job, failed := r.PeekQueue("q")
	r.ok(failed)
	redistest.Want(t, "peek", fmt.Sprintf("%s %q %d %d", job.ID, job.Data, job.TTL, job.RemainTries),
		fmt.Sprintf("%s %q 60 3", id, "one\x00\xff"))
	job, failed = r.PeekJob("q", id)
	r.ok(failed)
	redistest.Want(t, "peek job", fmt.Sprintf("%s %q %d %s", job.ID, job.Data, job.RemainTries, job.Namespace),
		fmt.Sprintf("%s %q 0 ns", id, "one\x00\xff"))
	if job, failed := r.PeekJob("q", "01M80K6PCFJX3AQJPDV0000000"); job != nil || failed != nil {
		t.Error("an unknown job", job, failed)
	}
	first, second := r.get("q", 60), r.get("q", 60)
	redistest.Want(t, "first", fmt.Sprintf("%s %q %d %s", first.ID, first.Data, first.RemainTries, first.Queue),
		fmt.Sprintf("%s %q 2 q", id, "one\x00\xff"))
	redistest.Want(t, "second", fmt.Sprintf("%q %d %d", second.Data, second.RemainTries, second.TTL), `"two" 1 0`)
	r.none("q")
	r.ok(r.Ack("q", first.ID))
	r.ok(r.Ack("q", first.ID))
	r.ok(r.Ack("other", second.ID))
	if job, failed := r.PeekJob("q", first.ID); job != nil || failed != nil {
		t.Error("acknowledged", job, failed)
	}
	if job, failed := r.PeekJob("q", second.ID); job == nil || failed != nil {
		t.Error("acknowledged in another queue", failed)
	}
	r.ok(r.Ack("q", second.ID))
	r.EnableErrorOnNilJob()
	if _, err := r.Consume("q", 1, 0); err == nil {
		t.Error("no error on nil job")
	}
}

// A delayed job is not early, and can be acknowledged before it is due. A job can be republished in place of another.
func TestDelaysAndRepublishing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	id := r.publish("q", "late", 60, 1, 1)
	gone := r.publish("q", "gone", 60, 1, 1)
	r.none("q")
	r.ok(r.Ack("q", gone))
	job := r.get("q", 30)
	if took := time.Since(began); job.ID != id || took < time.Second || took > 8*time.Second {
		t.Errorf("%s after %s", job.Data, took)
	}
	//lint:ignore SA1019 every call is tried
	again, err := r.RePublish(job, 60, 1, 0)
	if err != nil || again == id {
		t.Fatal(again, err)
	}
	if _, err := r.RePublishJob(&official.JobRequest{Queue: "q", ID: again, Data: []byte("third"), Tries: 1}); err != nil {
		t.Fatal(err)
	}
	if job, failed := r.PeekJob("q", id); job != nil {
		t.Error("the former job is still there", failed)
	}
	redistest.Want(t, "the republished job", string(r.get("q", 30).Data), "late")
	redistest.Want(t, "third", string(r.get("q", 30).Data), "third") // RePublishJob ignores the ID
	r.none("q")
}

// A job that is not acknowledged within its ttr is delivered again until its tries are used up. Then it is dead. Dead
// jobs can be peeked at, respawned and deleted.
func TestTriesAndDeadLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.publish("q", "a", 60, 2, 0)
	began := time.Now()
	redistest.Want(t, "tries left", r.get("q", 1).RemainTries, int64(1))
	job := r.get("q", 1)
	if took := time.Since(began); job.RemainTries != 0 || job.ID != a || took < time.Second {
		t.Errorf("%+v after %s", job, took)
	}
	redistest.Want(t, "head", r.dead("q", 1), a)
	b := r.publish("q", "b", 60, 1, 0)
	r.publish("q", "c", 60, 1, 0)
	if jobs, err := r.BatchConsume([]string{"q"}, 5, 1, 0); err != nil || len(jobs) != 2 {
		t.Fatal(jobs, err)
	}
	redistest.Want(t, "head", r.dead("q", 3), a)
	if job, failed := r.PeekJob("q", b); job == nil || job.TTL != 0 || failed != nil {
		t.Errorf("a dead job: %+v %v", job, failed)
	}
	r.none("q")
	n, failed := r.RespawnDeadLetter("q", 1, 60)
	r.ok(failed)
	redistest.Want(t, "respawned", n, 1)
	job = r.get("q", 1)
	redistest.Want(t, "the respawned job", fmt.Sprint(job.ID, job.RemainTries, string(job.Data)), fmt.Sprint(a, 0, "a"))
	r.ok(r.Ack("q", b)) // deletes a dead job
	r.dead("q", 2)      // c, and a, which is dead again after its ttr of one second
	r.ok(r.DeleteDeadLetter("q", 1))
	redistest.Want(t, "head", r.dead("q", 1), a)
	n, failed = r.RespawnDeadLetter("q", 100, 0)
	r.ok(failed)
	redistest.Want(t, "respawned", n, 1)
	redistest.Want(t, "ttl", r.get("q", 30).TTL, int64(0))
	redistest.Want(t, "none", r.dead("q", 0), "")
}

// An invalid dead letter of another program stays, and those after it are respawned.
func TestALetterThatCannotBeRespawnedIsInNobodysWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publish("p", "ours", 0, 1, 0)
	r.get("p", 1)
	r.dead("p", 1)
	dead := lua.NewKeys(r.prefix, "ns:p").Dead
	ours, err := r.r.Client.Do(t.Context(), r.r.Client.B().Xrange().Key(dead).Start("-").End("+").Build()).AsXRange()
	if err != nil || len(ours) != 1 {
		t.Fatal(ours, err)
	}
	add := func(id, entry string) {
		t.Helper()
		cmd := r.r.Client.B().Xadd().Key(dead).Id(entry).FieldValue()
		for name, value := range ours[0].FieldValues {
			if name == "id" {
				value = id
			}
			cmd = cmd.FieldValue(name, value)
		}
		if err := r.r.Client.Do(t.Context(), cmd.Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.r.Client.Do(t.Context(), r.r.Client.B().Del().Key(dead).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	add(strings.Repeat("i", 300), "1-1")
	add("", "1-2")
	add(ours[0].FieldValues["id"], "1-3")
	for _, want := range []int{1, 1, 0} {
		got := r.do("PUT", "/api/ns/p/deadletter", "")
		redistest.Want(t, "respawned", got.body, fmt.Sprintf(`{"count":%d,"msg":"respawned"}`, want))
	}
	for range 2 {
		redistest.Want(t, "job", string(r.get("p", 60).Data), "ours")
	}
	r.dead("p", 1)
	redistest.Want(t, "deleted", r.do("DELETE", "/api/ns/p/deadletter?limit=10", "").status, 204)
	r.dead("p", 0)
}

// After the answer that a job was published or respawned, the next request can consume it. No bridge runs in this test
// that could make the job ready. Regression: a bridge made it ready milliseconds after the answer, and a consumer that
// asked at once got no job.
func TestWhatIsSaidToBeThereCanBeConsumed(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRigAt(t, server.URL(), server.Prefix(t))
	consume := func(what string) {
		t.Helper()
		got := r.do("GET", "/api/ns/q?ttr=1", "")
		redistest.Want(t, what+": "+got.body, got.status, 200)
	}
	r.publish("q", "first", 0, 1, 0)
	consume("published")
	for range 5 {
		r.dead("q", 1)
		redistest.Want(t, "respawned", r.do("PUT", "/api/ns/q/deadletter", "").body, `{"count":1,"msg":"respawned"}`)
		consume("respawned")
	}
	r.dead("q", 1)
	due := lua.NewKeys(r.prefix, "ns:q").Due
	if err := r.r.Client.Do(t.Context(), r.r.Client.B().Zadd().Key(due).ScoreMember().ScoreMember(5, "overdue").Build()).
		Error(); err != nil {
		t.Fatal(err)
	}
	r.publish("q", "behind the overdue job", 0, 1, 0)
	consume("the overdue job")
	consume("the job behind the overdue one")
}

// A job of another program keeps its ordering key when it is respawned, so that messages of this key still wait for the
// job.
func TestARespawnedJobKeepsItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bearer := "Authorization: Bearer " + r.token
	redistest.Want(t, "published", r.do("POST", "/v1/queues/ns:k/messages?key=cust7&max_attempts=1", "x", bearer).status, 201)
	r.get("k", 1)
	r.dead("k", 1)
	redistest.Want(t, "respawned", r.do("PUT", "/api/ns/k/deadletter", "").body, `{"count":1,"msg":"respawned"}`)
	got := r.do("POST", "/v1/queues/ns:k/deliveries?group=lmstfy&wait_ms=10000", "", bearer)
	if !strings.Contains(got.body, `"key":"cust7"`) {
		t.Error(got.body)
	}
}

// A queue whose policy key has another type does not stop deliveries from the other queues of a request.
func TestAQueueOfAnotherTypeIsPassedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.r.Client.B().Set().Key(lua.NewKeys(r.prefix, "ns:bad").Policy).Value("x").Build()
	if err := r.r.Client.Do(t.Context(), set).Error(); err != nil {
		t.Fatal(err)
	}
	r.publish("good", "job", 0, 1, 0)
	got := r.do("GET", "/api/ns/bad,good?timeout=10", "")
	redistest.Want(t, "both queues: "+got.body, got.status, 200)
	redistest.Want(t, "status of the bad queue alone", r.do("GET", "/api/ns/bad", "").status, 500)
}

// A request that waits for a job, here for 136 years, ends when its token is revoked.
func TestAPollEndsWithItsToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.base, _ = r.listen(500 * time.Millisecond)
	secret := r.allow("other", access.Verbs(), "ns:*")
	got := make(chan int, 1)
	go func() {
		got <- r.do("GET", "/api/ns/poll?timeout=4294967295", "", "X-Token: "+secret).status
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		names, err := r.op.Queues(t.Context())
		return slices.Contains(names, "ns:poll"), fmt.Sprint("nobody waits: ", names, err)
	})
	if err := r.op.RemoveToken(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	redistest.Want(t, "the poll ends with", <-got, 401)
}

// With frozen tries, the end of a job's ttr uses up no try.
func TestFrozenTriesAreNotUsedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.publish("q", "x", 60, 1, 0)
	for range 2 {
		job, err := r.ConsumeWithFreezeTries("q", 1, 10)
		if err != nil || job == nil || job.ID != id || job.RemainTries != 1 {
			t.Fatalf("%+v %v", job, err)
		}
	}
	redistest.Want(t, "tries left of a delivery that is not frozen", r.get("q", 1).RemainTries, int64(0))
	redistest.Want(t, "dead", r.dead("q", 1), id)
}

// A bridge reclaims an entry that is idle for MaxTTR, and counts a try. The gateway must be at least five seconds
// faster, so it delivers a job as if it were already idle. Regression: when a bridge was faster than the gateway, which
// checks every 100 ms, it took back a job with frozen tries, and a job with one try was dead.
func TestABridgeLeavesAJobWithFrozenTriesToItsGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publish("q", "x", 600, 1, 0)
	began := time.Now()
	if job, err := r.ConsumeWithFreezeTries("q", 60, 10); err != nil || job == nil {
		t.Fatal(job, err)
	}
	list, err := r.op.Pending(t.Context(), "ns:q", lmstfy.Group, admin.PendingFilter{}, 10)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	left := lmstfy.MaxTTR - time.Duration(list[0].Idle) // until a bridge takes the job back
	spare := left + time.Since(began) - time.Minute     // how much earlier the gateway takes the job back, at most
	if spare < 5*time.Second-10*time.Millisecond {
		t.Errorf("the gateway is only %s faster than a bridge", spare)
	}
}

// A job whose ttl has ended is not delivered, not counted, and no dead letter.
func TestExpiredJobsAreGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publish("q", "ready", 1, 3, 0)
	r.publish("q", "delayed", 1, 3, 1)
	r.publish("flight", "in flight", 1, 3, 0)
	held := r.get("flight", 2)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n, err := r.QueueSize("q")
		return n == 0 && err == nil, "size"
	})
	<-time.After(2 * time.Second) // no event tells that no job comes back
	for _, queue := range []string{"q", "flight"} {
		r.none(queue)
		r.dead(queue, 0)
	}
	if job, failed := r.PeekJob("flight", held.ID); job != nil || failed != nil {
		t.Error("expired", job, failed)
	}
}

// Attributes of a job come back with the job, consumed or peeked at. The ID of such a job has a version mark.
func TestAttributes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	attributes := map[string]string{"foo-bar": "Baz", "n": "1"}
	request := &official.JobRequest{Queue: "q", Data: []byte("x"), Tries: 1, TTL: 60, Attributes: attributes}
	id, err := r.PublishJob(request)
	if err != nil || len(id) != 27 || id[:1] != "1" {
		t.Fatal(id, err)
	}
	peeked, _ := r.PeekJob("q", id)
	job := r.get("q", 10)
	if job.ID != id || !maps.Equal(job.Attributes, attributes) || !maps.Equal(peeked.Attributes, attributes) {
		t.Errorf("%+v %+v", job, peeked)
	}
}

// Every call that consumes, from one queue and from several. A waiting consumer gets the next job.
func TestBatchesAndSeveralQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids, err := r.BatchPublish("b", []any{"s", 1, map[string]any{"k": nil}}, 60, 1, 0)
	if err != nil || len(ids) != 3 {
		t.Fatal(ids, err)
	}
	r.publish("a", "a", 60, 1, 0)
	jobs, err := r.BatchConsume([]string{"a", "b"}, 3, 10, 0)
	if err != nil || len(jobs) != 3 {
		t.Fatal(jobs, err)
	}
	redistest.Want(t, "order", fmt.Sprintf("%s %s %s", jobs[0].Data, jobs[1].Data, jobs[2].Data), `a "s" 1`)
	job, err := r.ConsumeFromQueues(10, 5, "a", "b")
	if err != nil || string(job.Data) != `{"k":null}` || job.Queue != "b" {
		t.Fatal(job, err)
	}
	ctx := t.Context()
	one := func(job *official.Job, err error) ([]*official.Job, error) { return []*official.Job{job}, err }
	several := []string{"v", "w"}
	for name, consume := range map[string]func() ([]*official.Job, error){
		"one":            func() ([]*official.Job, error) { return one(r.Consume("w", 10, 10)) },
		"one frozen":     func() ([]*official.Job, error) { return one(r.ConsumeWithFreezeTries("w", 10, 10)) },
		"batch of one":   func() ([]*official.Job, error) { return r.BatchConsume(several, 1, 10, 10) },
		"batch":          func() ([]*official.Job, error) { return r.BatchConsume(several, 2, 10, 10) },
		"batch frozen":   func() ([]*official.Job, error) { return r.BatchConsumeWithFreezeTries(several, 2, 10, 10) },
		"several frozen": func() ([]*official.Job, error) { return one(r.ConsumeFromQueuesWithFreezeTries(10, 10, several...)) },
		"ctx":            func() ([]*official.Job, error) { return one(r.ConsumeWithContext(ctx, "w", 10, 10)) },
		"ctx frozen":     func() ([]*official.Job, error) { return one(r.ConsumeWithFreezeTriesWithContext(ctx, "w", 10, 10)) },
		"ctx batch":      func() ([]*official.Job, error) { return r.BatchConsumeWithContext(ctx, several, 2, 10, 10) },
		"ctx several":    func() ([]*official.Job, error) { return one(r.ConsumeFromQueuesWithContext(ctx, 10, 10, several...)) },
		"ctx several frozen": func() ([]*official.Job, error) {
			return one(r.ConsumeFromQueuesWithFreezeTriesWithContext(ctx, 10, 10, several...))
		},
		"ctx batch frozen": func() ([]*official.Job, error) {
			return r.BatchConsumeWithFreezeTriesWithContext(ctx, several, 2, 10, 10)
		},
	} {
		got := make(chan error, 1)
		go func() {
			jobs, err := consume()
			if err == nil && (len(jobs) != 1 || jobs[0] == nil || string(jobs[0].Data) != name) {
				err = fmt.Errorf("%v", jobs)
			}
			got <- err
		}()
		r.publish("w", name, 60, 1, 0)
		if err := <-got; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A caller that hangs up during a long poll takes no job, and uses up no try.
func TestWhoHangsUpTakesNoJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 5 {
		ctx, hangUp := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := r.ConsumeWithContext(ctx, "q", 60, 30); err == nil {
				t.Error("a job was delivered before any was published")
			}
		})
		answers := func(want int64) { // until the gateway has so many requests in progress
			redistest.Eventually(t, 10*time.Second, func() (bool, string) {
				n := r.answering.Load()
				return n == want, fmt.Sprint(n, " requests are being answered")
			})
		}
		answers(1)
		hangUp()
		waiting.Wait()
		answers(0)
	}
	r.publish("q", "x", 60, 1, 0)
	redistest.Want(t, "tries left", r.get("q", 1).RemainTries, int64(0))
}

// Any gateway can acknowledge a job that another one delivered, in any state of the job.
func TestAcksFindTheirJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := r.base
	id := r.publish("q", "x", 60, 5, 0)
	r.get("q", 60)
	r.base, _ = r.listen()
	redistest.Want(t, "acknowledged at another gateway", r.do("DELETE", "/api/ns/q/job/"+id, "").status, 204)
	if job, failed := r.PeekJob("q", id); job != nil || failed != nil {
		t.Error("still there", job, failed)
	}
	r.base = mine
	late := r.publish("q", "late", 60, 5, 0)
	r.get("q", 1)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n, err := r.QueueSize("q")
		return n == 1 && err == nil, "the job is not back after its ttr"
	})
	next := r.publish("q", "next", 60, 5, 0)
	r.ok(r.Ack("q", late))
	if n, failed := r.QueueSize("q"); n != 1 || failed != nil {
		t.Error("size", n, failed)
	}
	if job, failed := r.PeekQueue("q"); failed != nil || job == nil || job.ID != next {
		t.Error("peek", job, failed)
	}
	redistest.Want(t, "the next job", r.get("q", 60).ID, next)
	r.none("q")
}

// Regression: the acknowledgement of a job that was ready again after its ttr counted only at the gateway that got the
// acknowledgement, and another gateway delivered the job again.
func TestAJobThatCameBackIsAcknowledgedAtEveryGateway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := r.base
	other, _ := r.listen()
	id := r.publish("q", "late", 60, 5, 0)
	r.get("q", 1)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		n, err := r.QueueSize("q")
		return n == 1 && err == nil, "the job is not back after its ttr"
	})
	r.base = other
	redistest.Want(t, "acknowledged", r.do("DELETE", "/api/ns/q/job/"+id, "").status, 204)
	for _, base := range []string{mine, other} {
		r.base = base
		redistest.Want(t, "status of a consume", r.do("GET", "/api/ns/q?ttr=60", "").status, 404)
		redistest.Want(t, "peeked", r.do("GET", "/api/ns/q/job/"+id, "").status, 404)
	}
	r.base = mine
	next := r.publish("q", "next", 60, 5, 0)
	redistest.Want(t, "the next job", r.get("q", 60).ID, next)
}

// A job whose ID another producer chose can be acknowledged. A job of the same ID may be scheduled while a consumer has
// the first one, and stays scheduled. Regression: the acknowledgement was answered with 204 and did nothing, so the job
// came back or became a dead letter.
func TestAJobOfAnotherProducerIsAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := r.base
	other, _ := r.listen()
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r.r, Prefix: r.prefix})
	if err != nil {
		t.Fatal(err)
	}
	r.publish("q", "first", 60, 5, 0) // creates the queue
	r.get("q", 60)
	for _, base := range []string{mine, other} {
		if _, err := client.Schedule(t.Context(), "ns:q", []byte("today"), bridge.WithID("order-42")); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "the job", r.get("q", 60).ID, "order-42")
		if _, err := client.Schedule(t.Context(), "ns:q", []byte("tomorrow"), bridge.WithID("order-42"),
			bridge.In(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		r.base = base
		redistest.Want(t, "acknowledged", r.do("DELETE", "/api/ns/q/job/order-42", "").status, 204)
		r.base = mine
		held, err := r.op.Pending(t.Context(), "ns:q", lmstfy.Group, admin.PendingFilter{}, 10)
		if err != nil || len(held) != 1 || held[0].ID == "order-42" {
			t.Errorf("after the acknowledgement consumers have %v, %v", held, err)
		}
		if err := client.Cancel(t.Context(), "ns:q", "order-42"); err != nil {
			t.Errorf("the job of tomorrow: %v", err)
		}
	}
}

// A job of a gateway that has ended is also delivered again after its ttr.
func TestJobsOfAGatewayThatIsGoneComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine := r.base
	id := r.publish("q", "x", 60, 2, 0)
	other, stop := r.listen()
	r.base = other
	redistest.Want(t, "status of a consume", r.do("GET", "/api/ns/q?ttr=1", "").status, 200)
	stop()
	r.base = mine
	job := r.get("q", 60)
	redistest.Want(t, "the job that came back", fmt.Sprint(job.ID, job.RemainTries), fmt.Sprint(id, 0))
}
