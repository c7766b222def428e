package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// makeLetters makes the messages x and y of a queue dead letters of group g.
func (r *rig) makeLetters(queue string) {
	r.t.Helper()
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r.r, Prefix: r.prefix, Queue: queue, Group: "g",
		Handler: func(_ context.Context, m *bridge.Message) error {
			return bridge.DeadLetter(errors.New("broken " + string(m.Payload)))
		}})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for _, id := range []string{"x", "y"} {
		r.do("POST", "/v1/queues/"+queue+"/messages?id="+id, "payload of "+id).want(http.StatusCreated)
	}
	redistest.Eventually(r.t, 20*time.Second, func() (bool, string) {
		s, err := r.op.Stats(r.t.Context(), queue)
		return err == nil && s.Dead == 2, "no two dead letters"
	})
	stop()
	if err := <-ended; err != nil {
		r.t.Fatal(err)
	}
}

// After the answer to a redrive, its messages can be received at once. No bridge runs here that could make them ready.
// Regression: a redrive was answered milliseconds before a bridge had made the messages ready.
func TestRedrivenLettersAreThereWhenTheAnswerIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.makeLetters("orders")
	const path = "/v1/queues/orders/"
	var list struct{ Letters []struct{ Letter string } }
	r.do("GET", path+"dead?id=x", "").want(http.StatusOK).read(&list)
	r.do("POST", path+"dead/"+url.PathEscape(list.Letters[0].Letter)+"/redrive", "").want(http.StatusOK).
		has(`"scheduled":1`)
	r.do("POST", path+"deliveries?group=g", "").want(http.StatusOK).has(`"id":"x"`)
	r.do("POST", path+"dead/redrive?all=true", "").want(http.StatusOK).has(`"scheduled":1`)
	r.do("POST", path+"deliveries?group=g", "").want(http.StatusOK).has(`"id":"y"`)
}

// An operator lists dead letters, redrives one with another payload, and purges the rest. A call for many letters needs
// all=true. The log names the operations, and holds no payload.
func TestDeadLettersAreListedMendedRedrivenAndPurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.makeLetters("orders")
	const path = "/v1/queues/orders/dead"
	var list struct{ Letters []struct{ Letter, ID string } }
	r.do("GET", path+"?id=x", "").want(http.StatusOK).has(`"payload":"payload of x"`).read(&list)
	if len(list.Letters) != 1 || list.Letters[0].ID != "x" {
		t.Fatalf("letters %+v", list.Letters)
	}
	one := path + "/" + url.PathEscape(list.Letters[0].Letter)
	r.do("GET", one, "").want(http.StatusOK).has(`"error":"broken payload of x"`)
	r.do("GET", path+"?limit=1001", "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("GET", path+"?error=nothing", "").want(http.StatusOK).has(`{"letters":[]}`)

	r.do("POST", one+"/redrive?replace_payload=true&in_ms=600000", "mended").want(http.StatusOK).has(`"scheduled":1`)
	r.do("GET", "/v1/queues/orders/messages/x", "").has(`"payload":"mended"`)
	r.do("POST", one+"/redrive", "").refused(http.StatusNotFound, typeNotFound)
	r.do("GET", one, "").refused(http.StatusNotFound, typeNotFound)

	for _, method := range []string{"POST " + path + "/redrive", "DELETE " + path} { // all=true is required
		verb, at, _ := strings.Cut(method, " ")
		r.do(verb, at, "").refused(http.StatusUnprocessableEntity, typeInvalid).has(`"field":"all"`)
	}
	r.do("POST", path+"/redrive?group=g&dry_run=true", "").want(http.StatusOK).has(`"scheduled":1`).has(`"more":false`)
	r.do("POST", path+"/redrive?all=true&rate=NaN", "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("POST", path+"/redrive?all=true&rate=100&in_ms=600000&to=nobody", "").want(http.StatusOK).has(`"group_gone":1`)
	r.do("DELETE", path+"?reason=nothing", "").want(http.StatusOK).has(`{"more":false,"purged":0}`)
	r.do("DELETE", path+"?all=true", "").want(http.StatusOK).has(`{"more":false,"purged":1}`)
	r.do("DELETE", path+"/1-1", "").refused(http.StatusNotFound, typeNotFound)
	r.do("DELETE", path+"/x", "").refused(http.StatusUnprocessableEntity, typeInvalid)

	r.do("GET", "/v1/queues/orders/stats", "").want(http.StatusOK).has(`"dead":0`)
	r.do("GET", "/v1/queues/orders/history", "").want(http.StatusOK).has(`"changes":[]`).has(`"kept":false`)
	r.do("PATCH", "/v1/queues/orders/policy", `{"history":100,"history_ms":60000}`, "Content-Type: application/json").
		want(http.StatusOK)
	r.do("POST", "/v1/queues/orders/messages?id=told&in_ms=600000", "").want(http.StatusCreated)
	r.do("GET", "/v1/queues/orders/history?limit=1", "").want(http.StatusOK).has(`"id":"told"`).has(`"kept":true`)
	r.do("DELETE", "/v1/queues/orders/messages/told", "").want(http.StatusNoContent)
	r.do("GET", "/v1/queues/orders/history?limit=0", "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("GET", "/v1/queues/nobody/history", "").refused(http.StatusNotFound, typeNotFound)
	r.do("GET", "/v1/queues/orders/consumers?group=g", "").want(http.StatusOK)
	r.do("GET", "/v1/queues/orders/pending?group=g", "").want(http.StatusOK).has(`{"pending":[]}`)
	r.do("GET", "/v1/queues/orders/pending?group=other", "").refused(http.StatusNotFound, typeNoGroup)
	r.do("GET", "/v1/queues/orders/pending", "").refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("GET", "/v1/queues/orders/schedule?payloads=true", "").want(http.StatusOK).has(`"payload":"mended"`)
	if log := r.log.String(); !strings.Contains(log, "audit=true") || !strings.Contains(log, "purge dead letters") ||
		strings.Contains(log, "payload of") || strings.Contains(log, "mended") {
		t.Errorf("the log does not name the operator's calls, or holds a payload:\n%s", log)
	}
}

// With If-Match, a policy is changed only if it still has the ETag that the operator has seen. A wrong value is refused
// with its field. A pause shows in the policy.
func TestAPolicyIsChangedOnlyAsItWasSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const path, json = "/v1/queues/orders/policy", "Content-Type: application/json"
	r.do("GET", path, "").refused(http.StatusNotFound, typeNotFound)
	r.do("POST", "/v1/queues/orders/messages", "").want(http.StatusCreated)
	tag := r.do("GET", path, "").want(http.StatusOK).header.Get("ETag")
	next := r.do("PATCH", path, `{"max_attempts":7,"retry_delays_ms":"1000,2000","rate":"5/s"}`, json, "If-Match: "+tag).
		want(http.StatusOK).has(`"max_attempts":7`).has(`"retry_delays_ms":"1000,2000"`).header.Get("ETag")
	r.do("PATCH", path, `{"max_attempts":8}`, json, "If-Match: "+tag).refused(http.StatusPreconditionFailed, typeChanged)
	r.do("GET", path, "").has(`"max_attempts":7`)
	back := r.do("PATCH", path, `{"max_attempts":null,"retry_delays_ms":null,"rate":null}`, json, `If-Match: "x", `+next).
		want(http.StatusOK).header.Get("ETag")
	if back != tag || next == tag {
		t.Errorf("tags %s, %s, %s", tag, next, back)
	}
	r.do("PATCH", path, `{"handler_timeout_ms":60000}`, json).want(http.StatusOK).has(`"handler_timeout_ms":60000`)
	r.do("PATCH", path, `{"handler_timeout_ms":-1}`, json).refused(http.StatusUnprocessableEntity, typeInvalid).
		has(`"field":"handler_timeout_ms"`)
	r.do("PATCH", path, `{"handler_timeout_ms":null}`, json).want(http.StatusOK)
	r.do("PATCH", path+"?group=g", `{"max_attempts":3}`, json).want(http.StatusOK).has(`"max_attempts":3`)
	r.do("GET", path, "").has(`"max_attempts":40`)
	for body, field := range map[string]string{`{"max_attempts":0}`: "max_attempts",
		`{"max_attempts":"x"}`: "max_attempts", `{"x":1}`: "x",
		`{"visibility_ms":1}`: "visibility_ms", `{"visibility_ms":9223372036854775807}`: "visibility_ms", `{}`: "policy"} {
		r.do("PATCH", path, body, json).refused(http.StatusUnprocessableEntity, typeInvalid).has(`"field":"` + field + `"`)
	}
	r.do("PATCH", path, `[]`, json).refused(http.StatusBadRequest, typeMalformed)
	r.do("POST", "/v1/queues/orders/pause", "").want(http.StatusOK).has(`{"changed":true}`)
	r.do("POST", "/v1/queues/orders/pause", "").want(http.StatusOK).has(`{"changed":false}`)
	changes := redistest.Must(r.op.SettingChanges(t.Context(), "orders"))
	if len(changes) == 0 || changes[0].Setting != "held" || changes[0].By != "token all" {
		t.Errorf("the record of the pause is %+v, want first a pause by token all", changes)
	}
	r.do("GET", path, "").has(`"held":true`)
	r.do("POST", "/v1/queues/orders/pause?workers=true", "").want(http.StatusOK)
	r.do("POST", "/v1/queues/orders/resume", "").want(http.StatusOK).has(`{"changed":true}`)
	r.do("POST", "/v1/queues/misspelt/pause", "").refused(http.StatusNotFound, typeNotFound)
	r.do("GET", "/v1/queues", "").want(http.StatusOK).has(`{"queues":["orders"]}`)
}

// A recurrence can be created, replaced, read, paused, run, resumed and deleted. After that it is not found.
func TestRecurrencesAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const path, json = "/v1/queues/orders/recurrences", "Content-Type: application/json"
	r.do("PUT", path+"/nightly", `{"cron":"@daily","zone":"Europe/Paris","payload":{"to":"all"}}`, json).
		want(http.StatusCreated).has(`"payload":"{\"to\":\"all\"}"`).has(`"next":["`)
	r.do("PUT", path+"/nightly", `{"name":"nightly","queue":"orders","every_ms":60000}`, json).want(http.StatusOK).
		has(`"every_ms":60000`)
	r.do("GET", path, "").want(http.StatusOK).has(`"name":"nightly"`)
	r.do("POST", path+"/nightly/pause", "").want(http.StatusOK).has(`{"changed":true}`)
	r.do("GET", path+"/nightly", "").want(http.StatusOK).has(`"paused":true`)
	r.do("POST", path+"/nightly/run", "").want(http.StatusCreated).has(`-run"`)
	r.do("POST", path+"/nightly/resume", "").want(http.StatusOK)
	r.do("DELETE", path+"/nightly", "").want(http.StatusOK).has(`"taken_back":1`)
	for _, method := range []string{"GET ", "DELETE ", "POST /pause", "POST /run"} {
		verb, tail, _ := strings.Cut(method, " ")
		r.do(verb, path+"/nightly"+tail, "").refused(http.StatusNotFound, typeNotFound)
	}
	for body, field := range map[string]string{`{"cron":"61 * * * *"}`: "cron", `{"every_ms":-1}`: "every_ms",
		`{"queue":"b","every_ms":1000}`: "queue",
		`{"name":"b","every_ms":1000}`:  "name"} {
		r.do("PUT", path+"/n", body, json).refused(http.StatusUnprocessableEntity, typeInvalid).has(`"field":"` + field + `"`)
	}
	r.do("PUT", path+"/n", `{"payload":"secret","x":1}`, json).refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("PUT", path+"/n", `[]`, json).refused(http.StatusBadRequest, typeMalformed)
}

// Without Redis every route answers 503 with Retry-After, and does not show the address of Redis.
func TestAProblemTellsNothingThatIsNotTheCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRigAt(t, server.URL(), "duestream", func(c *Config) { c.Timeout = time.Second })
	r.do("POST", "/v1/queues/orders/messages", "").want(http.StatusCreated) // from now on the token is cached
	server.Pause()
	defer server.Resume()
	for _, path := range []string{"POST /v1/queues/orders/messages", "GET /v1/queues/orders/stats", "GET /v1/queues"} {
		method, at, _ := strings.Cut(path, " ")
		a := r.do(method, at, "secret-payload")
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: status %d, Retry-After %q\n%s", path, a.status, a.header.Get("Retry-After"), a.body)
		}
		for _, secret := range []string{server.Addr(), "secret-payload", r.token, "rueidis"} {
			if strings.Contains(string(a.body), secret) {
				t.Errorf("%s: %q is in the answer: %s", path, secret, a.body)
			}
		}
	}
	r.do("GET", "/v1/openapi.json", "", "Authorization: ").want(http.StatusOK)
}

// A request beyond the rate of its token is refused, and Retry-After says when to repeat it.
func TestARateIsKeptAndSaysWhenToComeAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := "Authorization: Bearer " + r.allow(access.Token{Name: "slow", Verbs: access.Verbs(), Queues: []string{"*"},
		Rate: "1/h", Burst: 2})
	r.do("GET", "/v1/queues", "", slow).want(http.StatusOK)
	r.do("POST", "/v1/queues/orders/messages", "", slow).want(http.StatusCreated)
	a := r.do("POST", "/v1/queues/orders/messages", "", slow).refused(http.StatusTooManyRequests, typeRate)
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// An answer has the X-Request-Id of its request if that is short and plain, and else a generated one.
func TestARequestKeepsItsSaneID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, kept := range map[string]bool{
		"abc-1.2:3_4": true, "a b": false, "a\"b": false, strings.Repeat("a", 65): false,
	} {
		if got := r.do("GET", "/v1/queues", "", "X-Request-Id: "+id).header.Get("X-Request-Id"); (got == id) != kept ||
			got == "" {
			t.Errorf("%q became %q", id, got)
		}
	}
}

// Regression: a caller that ended its side of the connection in the middle of a body got 500, or 503 from lmstfy's API.
func TestABodyThatEndsHalfwayIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"POST /v1/queues/orders/messages", "POST /v1/settlements", "PUT /api/ns/q"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, target+" HTTP/1.1\r\nHost: x\r\nX-Token: "+r.token+"\r\nAuthorization: Bearer "+r.token+
			"\r\nContent-Length: 5\r\n\r\n[{")
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(target, err)
		}
		redistest.Want(t, target, res.StatusCode, http.StatusBadRequest)
		_ = res.Body.Close()
	}
}

// Requests beyond MaxRequests are refused at once, and a request that does not end is cut off.
func TestAGatewayTakesSoManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests = 1 })
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /v1/queues/orders/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+r.token+
		"\r\nContent-Length: 5\r\n\r\nab")
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.g.busy.Load() == 1, "the request does not begin"
	})
	r.do("GET", "/v1/queues", "").want(http.StatusServiceUnavailable)
	_ = conn.Close()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.do("GET", "/v1/queues", "").status == http.StatusOK, "no request is accepted"
	})
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { // half a message is not stored
		return r.do("GET", "/v1/queues/orders/stats", "").status == http.StatusNotFound, "there is such a queue"
	})
	s := NewServer(r.g)
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= r.g.cfg.Timeout || s.IdleTimeout <= 0 ||
		s.MaxHeaderBytes <= 0 {
		t.Errorf("the server has no bounds for slow clients: %+v", s)
	}
}
