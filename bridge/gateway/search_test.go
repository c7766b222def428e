package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

const jsonBody = "Content-Type: application/json"

// line is a line of the answer to a search or an action.
type line struct {
	Hit      *admin.Hit
	Progress *admin.ActResult
	Result   *admin.ActResult
	Problem  *problem
}

// readLine decodes a line, and checks it against a schema of the document.
func readLine(t *testing.T, schema, text string) (l line) {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := openapi(t).Components.Schemas[schema].Value.VisitJSON(value); err != nil {
		t.Errorf("%s is no %s: %v", text, schema, err)
	}
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return l
}

// search runs a search that must succeed. It returns the hits, sorted, as "queue state id", and the result.
func (r *rig) search(token, body string) (hits string, result admin.ActResult) {
	r.t.Helper()
	var all []string
	a := r.do("POST", "/v1/search", body, jsonBody, "Authorization: Bearer "+token).want(http.StatusOK)
	redistest.Want(r.t, "Content-Type", a.header.Get("Content-Type"), "application/x-ndjson")
	lines := strings.Split(strings.TrimSuffix(string(a.body), "\n"), "\n")
	for i, text := range lines {
		l := readLine(r.t, "SearchLine", text)
		if l.Hit != nil {
			all = append(all, fmt.Sprintf("%s %s %s", l.Hit.Queue, l.Hit.State, l.Hit.ID))
		}
		if isLast := i == len(lines)-1; isLast != (l.Result != nil) || l.Problem != nil {
			r.t.Fatalf("line %d of %d: %s", i+1, len(lines), text)
		}
		if l.Result != nil {
			result = *l.Result
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", "), result
}

// act runs an action that must succeed, and returns the counts of its result: changed, unchanged, gone and refused.
func (r *rig) act(token, body string) string {
	r.t.Helper()
	a := r.do("POST", "/v1/act", body, jsonBody, "Authorization: Bearer "+token).want(http.StatusOK)
	lines := strings.Split(strings.TrimSuffix(string(a.body), "\n"), "\n")
	l := readLine(r.t, "ActLine", lines[len(lines)-1])
	if l.Result == nil || l.Problem != nil || !l.Result.Complete {
		r.t.Fatalf("%s", a.body)
	}
	return fmt.Sprint(l.Result.Changed, l.Result.Unchanged, l.Result.Gone, l.Result.Refused)
}

// searched returns a rig with scheduled messages in the queues shop.a, shop.b and mail, and dead letters of x and y in
// shop.a. It returns tokens that may inspect, and operate, the queues shop.*.
func searched(t *testing.T) (r *rig, inspector, operator string) {
	r = newRig(t)
	r.makeLetters("shop.a")
	for queue, id := range map[string]string{"shop.a": "car", "shop.b": "bike", "mail": "letter"} {
		r.do("POST", "/v1/queues/"+queue+"/messages?in_ms=600000&id="+id, "red "+id, "Duestream-Header-Tenant: acme").
			want(http.StatusCreated)
		queuetest.EventuallyRegistered(t, r.r.Client, r.prefix, queue, "1")
	}
	shop := []string{"shop.*"}
	inspector = r.allow(access.Token{Name: "board", Verbs: []access.Verb{access.Inspect}, Queues: shop})
	operator = r.allow(access.Token{Name: "on-call", Verbs: []access.Verb{access.Operate}, Queues: shop})
	return r, inspector, operator
}

// A search finds what each member of the filter selects, in the queues that the token may inspect and in no others.
func TestASearchShowsTheQueuesOfItsToken(t *testing.T) {
	t.Parallel()
	r, inspector, operator := searched(t)
	for body, want := range map[string]string{
		`{}`:                        "shop.a dead x, shop.a dead y, shop.a scheduled car, shop.b scheduled bike",
		`{"filter":{"text":"red"}}`: "shop.a scheduled car, shop.b scheduled bike",
		`{"filter":{"text":"red","queues":["shop.b"]}}`:                   "shop.b scheduled bike",
		`{"filter":{"text":"red","queues":["shop.b","shop.a","shop.b"]}}`: "shop.a scheduled car, shop.b scheduled bike",
		`{"filter":{"text":"green"}}`:                                     "",
		`{"filter":{"states":["dead"]},"limit":1000}`:                     "shop.a dead x, shop.a dead y",
		`{"filter":{"error":"payload of x"}}`:                             "shop.a dead x",
		`{"filter":{"headers":{"tenant":"acme"}}}`:                        "shop.a scheduled car, shop.b scheduled bike",
		`{"filter":{"prefix":"ca"}}`:                                      "shop.a scheduled car",
		`{"filter":{"ids":["car","y","letter"]}}`:                         "shop.a dead y, shop.a scheduled car",
		`{"filter":{"group":"g"}}`:                                        "shop.a dead x, shop.a dead y",
		`{"filter":{"reason":"expired"}}`:                                 "",
		`{"filter":{"from":"2100-01-02T03:04:05Z"}}`:                      "",
		`{"filter":{"states":["scheduled"]},"limit":1000000}`:             "shop.a scheduled car, shop.b scheduled bike",
	} {
		for name, token := range map[string]string{"inspect": inspector, "operate": operator} {
			hits, result := r.search(token, body)
			redistest.Want(t, name+": "+body, hits, want)
			redistest.Want(t, name+": complete: "+body, result.Complete, true)
		}
	}
	hits, result := r.search(inspector, `{"limit":2}`)
	redistest.Want(t, "hits", strings.Count(hits, ","), 1)
	redistest.Want(t, "found, complete", fmt.Sprint(result.Found, result.Complete), "2 false")
	hits, _ = r.search(r.token, `{"filter":{"text":"red"}}`)
	redistest.Want(t, "all queues", hits, "mail scheduled letter, shop.a scheduled car, shop.b scheduled bike")

	ask := func(token, path, body string) answer {
		t.Helper()
		return r.do("POST", path, body, jsonBody, "Authorization: Bearer "+token)
	}
	publisher := r.allow(access.Token{Name: "publisher", Verbs: []access.Verb{access.Publish, access.Consume},
		Queues: []string{"*"}})
	elsewhere := r.allow(access.Token{Name: "elsewhere", Verbs: access.Verbs(), Queues: []string{"x"}})
	ask(inspector, "/v1/search", `{"filter":{"queues":["shop.a","mail"]}}`).refused(http.StatusForbidden, typeForbidden)
	ask(publisher, "/v1/search", `{}`).refused(http.StatusForbidden, typeForbidden)
	for _, queues := range []string{`"shop.c"`, `"shop.a","shop.c","shop.b"`} {
		ask(inspector, "/v1/search", `{"filter":{"queues":[`+queues+`]}}`).refused(http.StatusNotFound, typeNotFound)
	}
	if hits, _ := r.search(elsewhere, `{}`); hits != "" { // the token is for a queue that does not exist
		t.Error(hits)
	}
	if log := r.log.String(); strings.Contains(log, "red car") {
		t.Error("a payload is in the log")
	}
}

// Each action changes what its filter or its hits select, in the queues of the token and in no others. The log names
// the action.
func TestAnActionChangesWhatItSelects(t *testing.T) {
	t.Parallel()
	r, inspector, operator := searched(t)
	const filter = `"filter":{"text":"red"}`
	redistest.Want(t, "dry run", r.act(operator, `{"action":"cancel",`+filter+`,"dry_run":true}`), "2 0 0 0")
	redistest.Want(t, "move", r.act(operator, `{"action":"reschedule",`+filter+`,"at_ms":4102444800000}`), "2 0 0 0")
	redistest.Want(t, "again", r.act(operator, `{"action":"reschedule",`+filter+`,"at_ms":4102444800000}`), "0 2 0 0")
	r.do("GET", "/v1/queues/shop.b/messages/bike", "").want(http.StatusOK).has(`"due":"2100-01-01T00:00:00Z"`)
	if a := r.do("GET", "/v1/queues/mail/messages/letter", ""); strings.Contains(string(a.body), "2100") {
		t.Error("a queue that the token is not for was changed")
	}
	const soon = `{"action":"reschedule","filter":{"ids":["car"]},"in_ms":60000,"spread_ms":1}`
	redistest.Want(t, "move", r.act(operator, soon), "1 0 0 0")

	hits := map[string]string{} // by ID
	a := r.do("POST", "/v1/search", `{}`, jsonBody)
	for text := range strings.Lines(string(a.body)) {
		var one struct{ Hit json.RawMessage }
		if l := readLine(t, "SearchLine", text); l.Hit != nil {
			_ = json.Unmarshal([]byte(text), &one)
			hits[l.Hit.ID] = string(one.Hit)
		}
	}
	ask := func(body string) answer {
		t.Helper()
		return r.do("POST", "/v1/act", body, jsonBody, "Authorization: Bearer "+operator)
	}
	ask(`{"action":"cancel","hits":[`+hits["car"]+`,`+hits["letter"]+`]}`).refused(http.StatusForbidden, typeForbidden)
	ask(`{"action":"cancel","filter":{"queues":["mail"],"text":"red"}}`).refused(http.StatusForbidden, typeForbidden)
	r.do("POST", "/v1/act", `{"action":"cancel",`+filter+`}`, jsonBody, "Authorization: Bearer "+inspector).
		refused(http.StatusForbidden, typeForbidden)
	r.do("GET", "/v1/queues/shop.a/messages/car", "").want(http.StatusOK)
	r.do("GET", "/v1/queues/mail/messages/letter", "").want(http.StatusOK)

	redistest.Want(t, "cancel a hit", r.act(operator, `{"action":"cancel","hits":[`+hits["car"]+`]}`), "1 0 0 0")
	redistest.Want(t, "once more", r.act(operator, `{"action":"cancel","hits":[`+hits["car"]+`]}`), "0 0 1 0")
	r.do("GET", "/v1/queues/shop.a/messages/car", "").refused(http.StatusNotFound, typeNotFound)
	redistest.Want(t, "expire", r.act(operator, `{"action":"expire",`+filter+`}`), "1 0 0 0")
	redistest.Want(t, "redrive", r.act(operator, `{"action":"redrive","hits":[`+hits["x"]+`],"in_ms":600000}`), "1 0 0 0")
	r.do("GET", "/v1/queues/shop.a/messages/x", "").want(http.StatusOK).has(`"retrying"`)
	redistest.Want(t, "redrive to no group", r.act(operator, `{"action":"redrive","filter":{},"all":true,"to":"none"}`),
		"0 0 0 1")
	redistest.Want(t, "purge", r.act(operator, `{"action":"purge","filter":{"queues":["shop.a"]},"all":true}`), "1 0 0 0")
	r.do("GET", "/v1/queues/shop.a/stats", "").want(http.StatusOK).has(`"dead":0`)
	for _, text := range []string{
		`action="act: purge begins" queue=shop.a request=`, "dry_run=false all=true hits=0", "all=false hits=1",
		`action="act: purge" queue=shop.a request=`, "done=true dry_run=true changed=2",
	} {
		if !strings.Contains(r.log.String(), text) {
			t.Errorf("no %s in the log", text)
		}
	}
}

// A wrong request for a search or an action is refused with the name of its field, and changes nothing.
func TestWrongSearchesAndActionsAreNamed(t *testing.T) {
	t.Parallel()
	r, _, _ := searched(t)
	before := r.keys()
	for body, field := range map[string]string{
		`{"limit":0}`:                     "limit",
		`{"limit":1000001}`:               "limit",
		`{"filter":{"states":["gone"]}}`:  "state",
		`{"filter":{"queues":["{q}"]}}`:   "queue",
		`{"filter":{"ids":[""]}}`:         "id",
		`{"filter":{"prefix":"a\u0001"}}`: "prefix",
		`{"filter":{"headers":{"":"x"}}}`: "header name",
		`{"filter":{"group":"a\u0001"}}`:  "group",
		`{"filter":{"from":"2030-01-01T00:00:00Z","until":"2029-01-01T00:00:00Z"}}`:     "until",
		`{"filter":{"text":"` + strings.Repeat("a", admin.MaxSearchTextBytes+1) + `"}}`: "text",
	} {
		r.do("POST", "/v1/search", body, jsonBody).refused(http.StatusUnprocessableEntity, typeInvalid).
			has(`"field":"` + field + `"`)
	}
	for body, field := range map[string]string{
		`{"action":"explode","filter":{},"all":true}`: "action",
		`{"filter":{},"all":true}`:                    "action",
		`{"action":"cancel"}`:                         "filter",
		`{"action":"cancel","filter":{"text":"a"},"hits":[{"queue":"mail","state":"dead"}]}`: "filter",
		`{"action":"cancel","filter":{}}`:                                               "all",
		`{"action":"purge","filter":{"queues":["mail"],"states":["dead"]}}`:             "all",
		`{"action":"cancel","hits":[]}`:                                                 "hits",
		`{"action":"cancel","hits":[{"queue":"","state":"scheduled","id":"a"}]}`:        "queue",
		`{"action":"cancel","hits":[{"queue":"mail","state":"gone","id":"a"}]}`:         "state",
		`{"action":"cancel","hits":[{"queue":"mail","state":"ready","id":"a"}]}`:        "entry",
		`{"action":"purge","hits":[{"queue":"mail","state":"dead","id":"a"}]}`:          "entry ID",
		`{"action":"cancel","filter":{"text":"a"},"rate":0}`:                            "rate",
		`{"action":"cancel","filter":{"text":"a"},"rate":1000001}`:                      "rate",
		`{"action":"cancel","filter":{"text":"a"},"in_ms":1}`:                           "delay",
		`{"action":"cancel","filter":{"text":"a"},"to":"g"}`:                            "to",
		`{"action":"reschedule","filter":{"text":"a"}}`:                                 "in_ms",
		`{"action":"reschedule","filter":{"text":"a"},"in_ms":1,"at_ms":4102444800000}`: "in_ms",
		`{"action":"reschedule","filter":{"text":"a"},"in_ms":-1}`:                      "in_ms",
		`{"action":"reschedule","filter":{"text":"a"},"in_ms":9223372036854775807}`:     "in_ms",
		`{"action":"reschedule","filter":{"text":"a"},"at_ms":9223372036854775807}`:     "at",
		`{"action":"redrive","filter":{"text":"a"},"spread_ms":-1}`:                     "spread_ms",
	} {
		r.do("POST", "/v1/act", body, jsonBody).refused(http.StatusUnprocessableEntity, typeInvalid).
			has(`"field":"` + field + `"`)
	}
	for _, path := range []string{"/v1/search", "/v1/act"} {
		for _, body := range []string{"", "[]", "{", "null", `{"x":1}`, `{"filter":{"x":1}}`, `{"filter":[]}`,
			`{"filter":{"from":"tomorrow"}}`, `{} {}`, "{\"filter\":{\"text\":\"\xff\"}}"} {
			r.do("POST", path, body, jsonBody).refused(http.StatusBadRequest, typeMalformed)
		}
		r.do("POST", path+"?queue=mail", `{}`, jsonBody).refused(http.StatusBadRequest, typeMalformed)
		r.do("GET", path, "").refused(http.StatusMethodNotAllowed, typeMethod)
	}
	redistest.Want(t, "keys", r.keys(), before)
}

// A line that has no JSON must end the operation with an error, and not the gateway with a panic.
func TestALineWithoutJSONEndsTheOperation(t *testing.T) {
	t.Parallel()
	ctx, fail := context.WithCancelCause(t.Context())
	out := &longRun{fail: fail}
	out.write(hitLine{admin.Hit{ID: "far", Due: time.Date(33658, 1, 1, 0, 0, 0, 0, time.UTC)}})
	if err := context.Cause(ctx); err == nil || !strings.Contains(err.Error(), "encode a line") {
		t.Error(err)
	}
}

// running is an action whose answer is being read.
type running struct {
	*rig
	lines  chan line // closed when the answer has ended
	hangUp func()
}

// startSlow begins to cancel the messages of the queue slow, one a second.
func (r *rig) startSlow(token string) *running {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", r.base+"/v1/act",
		strings.NewReader(`{"action":"cancel","filter":{"queues":["slow"]},"all":true,"rate":1}`))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	run := &running{rig: r, lines: make(chan line, 1000), hangUp: cancel}
	res, err := http.DefaultTransport.RoundTrip(req) // returns with the first line of progress
	if err != nil {
		r.t.Fatal(err)
	}
	redistest.Want(r.t, "status", res.StatusCode, http.StatusOK)
	go func() {
		defer close(run.lines)
		defer res.Body.Close()
		for texts := bufio.NewScanner(res.Body); texts.Scan(); {
			run.lines <- readLine(r.t, "ActLine", texts.Text())
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		for range run.lines { //nolint:revive // what is left
		}
	})
	return run
}

// last returns the last line of the answer.
func (r *running) last() (last line) {
	r.t.Helper()
	for end := time.After(time.Minute); ; {
		select {
		case l, more := <-r.lines:
			if !more {
				return last
			}
			last = l
		case <-end:
			r.t.Fatal("the answer does not end")
		}
	}
}

// slowRig returns a rig with messages in the queue slow, and a token for it.
func slowRig(t *testing.T) (r *rig, token string) {
	r = newRig(t)
	for i := range 100 {
		r.do("POST", fmt.Sprintf("/v1/queues/slow/messages?in_ms=600000&id=m%d", i), "").want(http.StatusCreated)
	}
	queuetest.EventuallyRegistered(t, r.r.Client, r.prefix, "slow", "1")
	return r, r.allow(access.Token{Name: "on-call", Verbs: []access.Verb{access.Operate}, Queues: []string{"slow"}})
}

// An action whose token is revoked ends within seconds, and its last line counts what was changed.
func TestAnActionEndsWhenItsTokenIsRevoked(t *testing.T) {
	t.Parallel()
	r, token := slowRig(t)
	run := r.startSlow(token)
	if err := access.Remove(t.Context(), r.r.Client, r.prefix, "on-call"); err != nil {
		t.Fatal(err)
	}
	last := run.last()
	if last.Problem == nil || last.Problem.Type != typeToken || last.Result == nil || last.Result.Complete {
		t.Fatalf("%+v", last)
	}
	left := r.r.Client.Do(t.Context(), r.r.Client.B().Zcard().Key(r.prefix+":{slow}:due").Build())
	n, err := left.AsInt64()
	redistest.Want(t, "left", fmt.Sprint(n, err), fmt.Sprint(100-last.Result.Changed, nil))
}

// One token may run two actions at once. A further one is refused until one of them ends: because its caller hangs up,
// or because the gateway stops, which the last line says.
func TestATokenMayRunTwoActionsAtOnce(t *testing.T) {
	t.Parallel()
	r, token := slowRig(t)
	one, two := r.startSlow(token), r.startSlow(token)
	ask := func(token string) answer {
		return r.do("POST", "/v1/act", `{"action":"expire","filter":{"queues":["slow"],"text":"none"}}`, jsonBody,
			"Authorization: Bearer "+token)
	}
	ask(token).refused(http.StatusServiceUnavailable, typeBusy)
	for _, path := range []string{"/v1/search", "/v1/act"} { // the body, which is no object, is not looked at
		r.do("POST", path, "[]", jsonBody, "Authorization: Bearer "+token).refused(http.StatusServiceUnavailable, typeBusy)
	}
	ask(r.token).want(http.StatusOK)
	one.hangUp()
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return ask(token).status == http.StatusOK, "the place of the first action is not free"
	})
	r.g.stop()
	if last := two.last(); last.Problem == nil || last.Problem.Type != typeBusy || last.Result == nil {
		t.Errorf("%+v", last)
	}
}
