package lmstfy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

const kindOfJSON = "application/json; charset=utf-8"

// Errors and answers about nothing equal those of lmstfy's server, byte for byte.
func TestErrorsAreThoseOfItsServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	narrow := r.allow("narrow", []access.Verb{access.Publish}, "ns:a", "other:*")
	long := strings.Repeat("n", 200)
	many := "[" + strings.Repeat("1,", 64) + "1]"
	attributes := []string{"Enable-Job-Version: yes"}
	for i := range 17 {
		attributes = append(attributes, fmt.Sprintf("Job-Attr-A%d: x", i))
	}
	error := func(text string) string { return `{"error":"` + text + `"}` }
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
		headers            []string
	}{
		{"PUT", "/api/n%20s/q", "", 400, error("namespace name contains forbidden characters"), nil},
		{"PUT", "/api/n:s/q", "", 400, error("namespace name contains forbidden characters"), nil},
		{"PUT", "/api/ns/q.r", "", 400, error("queue name contains forbidden characters"), nil},
		{"GET", "/api/ns/_q/size", "", 400, error("queue name contains forbidden characters"), []string{"X-Token: "}},
		{"PUT", "/api/ns/" + long, "", 400, error("namespace or queue name too long"), nil},
		{"PUT", "/api/ns/q", "", 404, error("pool not found"), []string{"X-Token: p:x"}},
		{"PUT", "/api/ns/q", "", 401, error("token not found"), []string{"X-Token: "}},
		{"PUT", "/api/ns/q", "", 401, error("token not found"), []string{"X-Token: default:"}},
		{"PUT", "/api/ns/q", "", 401, error("invalid token"), []string{"X-Token: 01M80K6PCFJX3AQJPDV0000000"}},
		{"GET", "/api/other/q", "", 401, error("invalid token"), nil},
		{"GET", "/api/ns/q,", "", 401, error("invalid token"), []string{"X-Token: " + narrow}},
		{"PUT", "/api/ns/b", "", 401, error("invalid token"), []string{"X-Token: " + narrow}},
		{"GET", "/api/ns/b/size", "", 401, error("invalid token"), []string{"X-Token: " + narrow}},
		{"DELETE", "/api/ns/a", "", 401, error("invalid token"), []string{"X-Token: " + narrow}},
		{"PUT", "/api/ns/q?delay=x", "", 400, error("invalid delay"), nil},
		{"PUT", "/api/ns/q?delay=", "", 400, error("invalid delay"), nil},
		{"PUT", "/api/ns/q?delay=-1&ttl=x", "", 400, error("invalid delay"), nil},
		{"PUT", "/api/ns/q?ttl=4294967296", "", 400, error("invalid ttl"), nil},
		{"PUT", "/api/ns/q?ttl=1.5", "", 400, error("invalid ttl"), nil},
		{"PUT", "/api/ns/q?delay=86401", "", 400, error("ttl is shorter than delay"), nil},
		{"PUT", "/api/ns/q?tries=65536", "", 400, error("invalid tries"), nil},
		{"PUT", "/api/ns/q?tries=0", "", 400, error("tries shouldn't be zero"), nil},
		{"PUT", "/api/ns/q", strings.Repeat("x", 1<<20+1), 413, error("body too large"), nil},
		{"PUT", "/api/ns/q", "", 400, error("too many attributes, cannot exceed 16"), attributes},
		{"PUT", "/api/ns/q/bulk", `["` + strings.Repeat("x", 1<<20) + `"]`, 413, error("job too large"), nil},
		{"PUT", "/api/ns/q/bulk", "{}", 400, error("request body should be an array of objects"), nil},
		{"PUT", "/api/ns/q/bulk", "", 400, error("request body should be an array of objects"), nil},
		{"PUT", "/api/ns/q/bulk", "[1]x", 400, error("request body should be an array of objects"), nil},
		{"PUT", "/api/ns/q/bulk", "[]", 400, error("no jobs"), nil},
		{"PUT", "/api/ns/q/bulk", "null", 400, error("no jobs"), nil},
		{"PUT", "/api/ns/q/bulk", many, 400, error("too many jobs"), nil},
		{"GET", "/api/ns/q?ttr=x&timeout=x", "", 400, error("invalid ttr"), nil},
		{"GET", "/api/ns/q?timeout=x&count=x", "", 400, error("invalid timeout"), nil},
		{"GET", "/api/ns/q?count=0", "", 400, error("invalid count"), nil},
		{"GET", "/api/ns/q?count=101", "", 400, error("invalid count"), nil},
		{"GET", "/api/ns/,,", "", 400, error("invalid queue name(s)"), nil},
		{"GET", "/api/ns/a,b.c", "", 400, error("queue name contains forbidden characters"), nil},
		{"GET", "/api/ns/q", "", 404, `{"msg":"no job available"}`, nil},
		{"GET", "/api/ns/_q?timeout=1&count=2", "", 404, `{"msg":"no job available"}`, nil},
		{"GET", "/api/ns/q/peek", "", 404, error("the queue is empty"), nil},
		{"GET", "/api/ns/q/job/x", "", 404, error("job not found"), nil},
		{"PUT", "/api/ns/q/deadletter?limit=0", "", 400, error("invalid limit"), nil},
		{"DELETE", "/api/ns/q/deadletter?limit=-1", "", 400, error("invalid limit"), nil},
		{"PUT", "/api/ns/q/deadletter?ttl=-1", "", 400, error("invalid ttl"), nil},
		{"PUT", "/api/ns/q/deadletter", "", 200, `{"count":0,"msg":"respawned"}`, nil},
		{"GET", "/api/ns/q/deadletter", "", 200, `{"deadletter_head":"","deadletter_size":0,"namespace":"ns","queue":"q"}`, nil},
		{"GET", "/api/ns/q/deadletter/size", "", 200, `{"namespace":"ns","queue":"q","size":0}`, nil},
		{"GET", "/api/ns/q/size?token=" + r.token, "", 200, `{"namespace":"ns","queue":"q","size":0}`, []string{"X-Token: "}},
		{"DELETE", "/api/ns/q/deadletter", "", 204, "", nil},
		{"DELETE", "/api/ns/q/job/x", "", 204, "", nil},
		{"DELETE", "/api/ns/none", "", 204, "", nil},
		{"POST", "/api/ns/q", "", 404, error("api not found"), nil},
		{"OPTIONS", "/api/ns/q", "", 404, error("api not found"), nil},
		{"GET", "/api/ns/q/", "", 404, error("api not found"), nil},
		{"GET", "/api/ns", "", 404, error("api not found"), nil},
		{"GET", "/api/ns/q/job", "", 404, error("api not found"), nil},
		{"GET", "/api/ns/q/job/a/b", "", 404, error("api not found"), nil},
		{"GET", "/api/ns/q/bulk", "", 404, error("api not found"), nil},
	} {
		a := r.do(c.method, c.path, c.body, c.headers...)
		kind := kindOfJSON
		if c.want == "" {
			kind = ""
		}
		if a.status != c.status || a.body != c.want || a.kind != kind || a.header.Get("X-Request-Id") == "" {
			t.Errorf("%s %.80s %v: %d %q %q\nwant %d %q", c.method, c.path, c.headers, a.status, a.kind, a.body, c.status, c.want)
		}
	}
}

// Answers about jobs equal those of lmstfy's server, byte for byte, but for IDs and times.
func TestAnswersAreThoseOfItsServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	normal := regexp.MustCompile(`"elapsed_ms":\d+`)
	ttl := regexp.MustCompile(`"ttl":[1-9]\d*`)
	id := regexp.MustCompile(`"1?[0-9A-HJKMNP-TV-Z]{26}"`)
	began := time.Now()
	want := func(a answer, status int, body string) {
		t.Helper()
		// A ttl of 60 s that has run since the test began is shown as 60.
		a.body = ttl.ReplaceAllStringFunc(a.body, func(found string) string {
			left, err := strconv.Atoi(strings.TrimPrefix(found, `"ttl":`))
			if passed := int(time.Since(began)/time.Second) + 1; err != nil || left < 60-passed || left > 60 {
				return found
			}
			return `"ttl":60`
		})
		got := id.ReplaceAllString(normal.ReplaceAllString(a.body, `"elapsed_ms":1`), `"ID"`)
		if a.status != status || got != body || a.kind != kindOfJSON {
			t.Errorf("%d %s %s\nwant %s", a.status, a.kind, got, body)
		}
	}
	want(r.do("PUT", "/api/ns/q?ttl=060&token=x&unknown=1", "hello", "X-Token: default:"+r.token), 201,
		`{"job_id":"ID","msg":"published"}`)
	want(r.do("GET", "/api/ns/q/peek", ""), 200, `{"attributes":null,"data":"aGVsbG8=","elapsed_ms":1,"job_id":"ID",`+
		`"namespace":"ns","queue":"q","remain_tries":1,"ttl":60}`)
	want(r.do("GET", "/api/ns/none%2C,q?ttr=5", "", "X-Token: :"+r.token), 200, `{"attributes":null,"data":"aGVsbG8=",`+
		`"elapsed_ms":1,"job_id":"ID","msg":"new job","namespace":"ns","queue":"q","remain_tries":0,"ttl":60}`)
	want(r.do("PUT", "/api/ns/q?tries=2&ttl=0", "", "Enable-Job-Version: yes", "Job-Attr-Foo-Bar: <Baz>", "Job-Attr-No: "), 201,
		`{"job_id":"ID","msg":"published"}`)
	want(r.do("GET", "/api/ns/q?count=2", ""), 200, `[{"attributes":{"foo-bar":"\u003cBaz\u003e"},"data":"","elapsed_ms":1,`+
		`"job_id":"ID","msg":"new job","namespace":"ns","queue":"q","remain_tries":1,"ttl":0}]`)
	want(r.do("PUT", "/api/ns/bulk/bulk", ` [ {"a" : 1}, "x\u0041", 1.50, null ] `), 201,
		`{"job_ids":["ID","ID","ID","ID"],"msg":"published"}`)
	var data []string
	for range 4 {
		data = append(data, string(r.get("bulk", 60).Data))
	}
	redistest.Want(t, "bulk", strings.Join(data, "|"), `{"a" : 1}|"x\u0041"|1.50|null`)
	want(r.do("PUT", "/api/ns/q/job/x", "again"), 201, `{"job_id":"ID","msg":"published"}`)
	want(r.do("GET", "/api/ns/q/size", ""), 200, `{"namespace":"ns","queue":"q","size":1}`)
}

// Destroying a queue removes its jobs in every state.
func TestDestroyRemovesEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publish("q", "dead", 60, 1, 0)
	r.get("q", 1)
	r.dead("q", 1)
	flight := r.publish("q", "in flight", 60, 9, 0)
	r.get("q", 3)
	delayed := r.publish("q", "delayed", 60, 1, 50)
	ready := r.publish("q", "ready", 60, 1, 0)
	redistest.Want(t, "status", r.do("DELETE", "/api/ns/q", "").status, http.StatusNoContent)
	r.none("q")
	r.dead("q", 0)
	for _, id := range []string{flight, delayed, ready} {
		if job, failed := r.PeekJob("q", id); job != nil || failed != nil {
			t.Error(job, failed)
		}
	}
	r.publish("q", "new", 60, 1, 0)
	redistest.Want(t, "new", string(r.get("q", 600).Data), "new")
}

// A destroyed queue keeps its partitions. Regression: it had one partition left, while clients went on publishing into
// the others.
func TestADestroyedQueueKeepsItsPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	queuetest.PublishCount(t, r.r.Client, r.prefix, "ns:q", 8)
	r.publish("q", "before", 60, 1, 0)
	redistest.Want(t, "status", r.do("DELETE", "/api/ns/q", "").status, http.StatusNoContent)
	queuetest.EventuallyRegistered(t, r.r.Client, r.prefix, "ns:q", "1,8")
	for range 32 {
		r.publish("q", "x", 60, 1, 0)
	}
	for range 32 {
		r.ok(r.Ack("q", r.get("q", 60).ID))
	}
	r.none("q")
}

// destroyed is a queue ns:q for a test to destroy, with four partitions that have the settings of lmstfy's API. The
// test can make commands fail meanwhile.
type destroyed struct {
	*rig
	redis    *faulty
	registry string
	settings map[string]string // of each partition, before
}

func newDestroyed(t *testing.T) destroyed {
	t.Helper()
	r, f := newFaultyRig(t)
	queuetest.PublishCount(t, f.Client, r.prefix, "ns:q", 4)
	r.none("q")
	d := destroyed{rig: r, redis: f, registry: lua.NewGlobals(r.prefix).Queues}
	d.settings = d.settingsOf(0)
	redistest.Want(t, "has settings", len(d.settings) > 0, true)
	return d
}

// settingsOf returns the settings that are stored for a partition.
func (d destroyed) settingsOf(partition int) map[string]string {
	d.t.Helper()
	key := lua.NewKeys(d.prefix, lua.PartitionName("ns:q", partition)).Policy
	fields, err := d.redis.Client.Do(d.t.Context(), d.redis.Client.B().Hgetall().Key(key).Build()).AsStrMap()
	if err != nil {
		d.t.Fatal(err)
	}
	return fields
}

// wantComplete checks that the queue has four partitions, all with the settings from before.
func (d destroyed) wantComplete() {
	d.t.Helper()
	counts := queuetest.Text(d.t, d.redis.Client, "HGET", d.registry, "ns:q")
	redistest.Want(d.t, "partition counts", counts, "1,4")
	for partition := range 4 {
		redistest.Want(d.t, fmt.Sprint("settings of partition ", partition), fmt.Sprint(d.settingsOf(partition)),
			fmt.Sprint(d.settings))
	}
}

// removes reports whether a command removes the keys of a partition.
func (d destroyed) removes(words []string, partition int) bool {
	return words[0] == "UNLINK" && slices.Contains(words, lua.NewKeys(d.prefix, lua.PartitionName("ns:q", partition)).Due)
}

// registers reports whether a command registers the partition counts.
func (d destroyed) registers(words []string) bool {
	return settles(words, d.registry) && slices.Contains(words, "1,4")
}

// While a gateway destroys a queue, another gateway may write the settings of partition 0. The first gateway must still
// write the settings of the other partitions: without them, their jobs would come back by the settings of the defaults.
func TestADestroyedQueueHasItsSettingsInEveryPartition(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	d.redis.set(func(ctx context.Context, words []string) error {
		if d.registers(words) {
			write := []string{"HSET", lua.NewKeys(d.prefix, "ns:q").Policy}
			for field, value := range d.settings {
				write = append(write, field, value)
			}
			return d.redis.Client.Do(ctx, d.redis.Client.B().Arbitrary(write...).Build()).Error()
		}
		return nil
	})
	redistest.Want(t, "status", d.do("DELETE", "/api/ns/q", "").status, http.StatusNoContent)
	d.wantComplete()
}

// A deletion that fails leaves the settings of every partition. Regression: it had removed the settings of some
// partitions. Gateways look only at the settings of partition 0, so from then on the others delivered their jobs again
// after the visibility timeout of the defaults.
func TestAQueueThatCouldNotBeDestroyedKeepsItsSettings(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	var failed atomic.Bool
	d.redis.set(func(_ context.Context, words []string) error {
		if d.removes(words, 2) && !failed.Swap(true) {
			return io.EOF
		}
		return nil
	})
	redistest.Want(t, "status", d.do("DELETE", "/api/ns/q", "").status, http.StatusServiceUnavailable)
	redistest.Want(t, "failed", failed.Load(), true)
	d.wantComplete()
}

// A deletion goes on although its caller hangs up, because half a deletion would leave partitions without settings.
func TestADestroyedQueueIsCompleteAlthoughTheCallerHangsUp(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	d.publish("q", "x", 60, 1, 50)
	caller, hangUp := context.WithCancel(t.Context())
	d.redis.set(func(ctx context.Context, words []string) error {
		if d.removes(words, 2) {
			hangUp()
		}
		return ctx.Err()
	})
	request := httptest.NewRequest("DELETE", "/api/ns/q", nil).WithContext(caller)
	request.Header.Set("X-Token", d.token)
	d.handler.ServeHTTP(httptest.NewRecorder(), request)
	redistest.Want(t, "hung up", caller.Err() != nil, true)
	d.redis.set(nil)
	d.wantComplete()
	d.none("q")
}

// If the registration of the partitions fails during a deletion, a repeated call registers them. Regression: the
// repeated call found a queue without partitions. Jobs that were due at once went into partitions that no bridge
// served.
func TestADestroyedQueueThatWasNotRegisteredIsRegisteredByARepetition(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	var fails atomic.Int64
	d.redis.set(func(_ context.Context, words []string) error {
		if d.registers(words) && fails.Add(1) == 1 {
			return io.EOF
		}
		return nil
	})
	redistest.Want(t, "status", d.do("DELETE", "/api/ns/q", "").status, http.StatusServiceUnavailable)
	redistest.Want(t, "repeated", d.do("DELETE", "/api/ns/q", "").status, http.StatusNoContent)
	d.wantComplete()
}

// A deletion that fails registers nothing that was not registered before. Regression: it registered partition counts
// that an operator had deleted, so partitions without groups got jobs, and it registered a queue whose name was
// misspelt.
func TestADestroyThatFailsRegistersNothingNew(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	queuetest.Do(t, d.redis.Client, "HSET", d.registry, "ns:q", "1", lua.DeletedCounts("ns:q"), "4")
	d.redis.set(func(_ context.Context, words []string) error {
		if words[0] == "UNLINK" || words[0] == "EXISTS" {
			return io.EOF
		}
		return nil
	})
	for _, name := range []string{"q", "misspelt"} {
		redistest.Want(t, "status of "+name, d.do("DELETE", "/api/ns/"+name, "").status, http.StatusServiceUnavailable)
	}
	redistest.Want(t, "partition counts", queuetest.Text(t, d.redis.Client, "HGET", d.registry, "ns:q"), "1")
	redistest.Want(t, "misspelt", queuetest.Integer(t, d.redis.Client, "HEXISTS", d.registry, "ns:misspelt"), 0)
}

// A key in a partition that somebody made up does not give the queue this partition.
func TestADestroyedQueueGetsNoPartitionThatSomebodyMadeUp(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	queuetest.Do(t, d.redis.Client, "XADD", lua.NewKeys(d.prefix, "ns:q/255").Wake, "*", "due_ms", "1")
	redistest.Want(t, "status", d.do("DELETE", "/api/ns/q", "").status, http.StatusNoContent)
	d.wantComplete()
}

// A deletion that fails halfway leaves every group in every partition. Regression: a group was missing in some
// partitions, and never got the jobs there that another group acknowledged.
func TestADestroyThatFailsKeepsTheGroups(t *testing.T) {
	t.Parallel()
	d := newDestroyed(t)
	for partition := range 4 {
		key := lua.NewKeys(d.prefix, lua.PartitionName("ns:q", partition)).Stream
		queuetest.Do(t, d.redis.Client, "XGROUP", "CREATE", key, "audit", "0", "MKSTREAM")
	}
	d.redis.set(func(_ context.Context, words []string) error {
		if d.removes(words, 2) {
			return io.EOF
		}
		return nil
	})
	redistest.Want(t, "status", d.do("DELETE", "/api/ns/q", "").status, http.StatusServiceUnavailable)
	d.redis.set(nil)
	d.wantComplete()
	for partition := range 4 {
		key := lua.NewKeys(d.prefix, lua.PartitionName("ns:q", partition)).Stream
		groups, err := d.redis.Client.Do(t.Context(), d.redis.Client.B().XinfoGroups().Key(key).Build()).ToArray()
		found := false
		for _, group := range groups {
			fields, _ := group.AsStrMap()
			found = found || fields["name"] == "audit"
		}
		if err != nil || !found {
			t.Errorf("partition %d has no group audit: %v", partition, err)
		}
	}
}

// While Redis is not available, a queue is never reported as empty.
func TestABrokenStoreIsNoEmptyQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRigAt(t, server.URL(), server.Prefix(t))
	r.publish("q", "x", 60, 1, 0)
	server.Kill()
	for _, c := range []string{"GET /api/ns/q", "GET /api/ns/q?count=2&timeout=1", "GET /api/ns/q/peek", "GET /api/ns/q/job/" +
		"01M80K6PCFJX3AQJPDV0000000", "PUT /api/ns/q", "GET /api/ns/q/size", "GET /api/ns/q/deadletter", "DELETE /api/ns/q/job/" +
		"01M80K6PCFJX3AQJPDV0000000"} {
		method, path, _ := strings.Cut(c, " ")
		a := r.do(method, path, "")
		if a.status != http.StatusServiceUnavailable || a.body != `{"error":"the store is not available"}` {
			t.Errorf("%s: %d %s", c, a.status, a.body)
		}
	}
}

// lateBody is a body of a request whose first byte comes late.
type lateBody struct {
	io.Reader
	comes <-chan time.Time
	wait  sync.Once
}

func (b *lateBody) Read(to []byte) (int, error) {
	b.wait.Do(func() { <-b.comes })
	return b.Reader.Read(to)
}

// A body that is complete, but comes after the Timeout of its request, gets 503, which clients repeat. Regression: it
// got 400, which clients do not repeat.
func TestABodyThatComesWholeAndTooLateMayBeSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const timeout = time.Second
	r.listen(timeout)
	for _, path := range []string{"/api/ns/late", "/api/ns/late/bulk"} {
		request := httptest.NewRequest("PUT", path, &lateBody{
			Reader: strings.NewReader("[1]"), comes: time.After(timeout + timeout/2)})
		request.ContentLength = 3
		request.Header.Set("X-Token", r.token)
		answer := httptest.NewRecorder()
		r.handler.ServeHTTP(answer, request)
		redistest.Want(t, path, fmt.Sprint(answer.Code, " ", answer.Body),
			`503 {"error":"the request took too long: try again"}`)
		redistest.Want(t, path+": Retry-After", answer.Header().Get("Retry-After"), "1")
	}
	size, err := r.QueueSize("late")
	redistest.Want(t, "jobs", fmt.Sprint(size, err), "0 <nil>")
}
