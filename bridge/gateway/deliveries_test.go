package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream/pull"
)

// given returns the deliveries in an answer, which must be 200.
func (r *rig) given(a answer) (all []delivery) {
	r.t.Helper()
	a.want(http.StatusOK)
	var body struct{ Deliveries []delivery }
	if err := json.Unmarshal(a.body, &body); err != nil {
		r.t.Fatal(err)
	}
	return body.Deliveries
}

// settles posts settlements, and returns the outcomes.
func (r *rig) settles(all ...string) string {
	r.t.Helper()
	a := r.do("POST", "/v1/settlements", "["+strings.Join(all, ",")+"]", "Content-Type: application/json")
	a.want(http.StatusOK)
	var body struct{ Settled []outcome }
	if err := json.Unmarshal(a.body, &body); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(body.Settled)
}

// Published messages are received, with their bytes and headers, and settled with each outcome.
func TestReceiveAndSettle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i, payload := range []string{"plain", "\xff\x00", "", "d", "e", "f"} {
		r.do("POST", fmt.Sprintf("/v1/queues/q/messages?id=m%d", i), payload, "Duestream-Header-Trace: x").want(http.StatusCreated)
	}
	all := r.given(r.do("POST", "/v1/queues/q/deliveries?group=g&count=4&within_ms=5000", ""))
	all = append(all, r.given(r.do("POST", "/v1/deliveries?queues=none,q&weights=9,1&group=g&count=10", ""))...)
	if len(all) != 6 || string(all[1].Payload) != "\xff\x00" || all[0].Headers["trace"] != "x" || all[0].Within != 5000 ||
		all[5].Within != 30_000 {
		t.Fatalf("%+v", all)
	}
	// say returns a settlement of delivery i, with further fields.
	say := func(i int, rest string) string { return fmt.Sprintf(`{"token":%q%s}`, all[i].Token, rest) }
	redistest.Want(t, "settled", r.settles(say(0, ""), say(1, `,"outcome":"retry","error":"no","in_ms":0`),
		say(2, `,"outcome":"dead","error":"never"`), say(3, `,"outcome":"release"`), say(4, `,"outcome":"snooze","in_ms":0`),
		say(5, `,"outcome":"extend","within_ms":100`)), "[{acknowledged} {retried} {dead} {released} {snoozed} {extended}]")
	redistest.Want(t, "settled again", r.settles(say(0, ""), say(1, `,"outcome":"retry"`), say(5, "")),
		"[{lost} {lost} {acknowledged}]")
	letters := r.do("GET", "/v1/queues/q/dead", "")
	if letters.want(http.StatusOK); !strings.Contains(string(letters.body), `"never"`) {
		t.Errorf("%s", letters.body)
	}
}

// A caller waits until there is a message. A caller that hangs up before gets none. A gateway that stops answers all
// waiting callers without a message.
func TestWaitingForAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// wait asks for a message, and sends the status and the IDs of the messages that it got, or "hung up".
	wait := func(ctx context.Context, ended chan<- string) {
		req, err := http.NewRequestWithContext(ctx, "POST", r.base+"/v1/queues/q/deliveries?group=g&wait_ms=60000", nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+r.token)
		a, err := http.DefaultClient.Do(req)
		if err != nil {
			ended <- "hung up"
			return
		}
		defer a.Body.Close()
		var body struct{ Deliveries []delivery }
		if err := json.NewDecoder(a.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		ids := fmt.Sprint(a.StatusCode)
		for _, d := range body.Deliveries {
			ids += " " + d.ID
		}
		ended <- ids
	}
	untilWaiting := func(n int) { // callers at the gateway
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == n, fmt.Sprint(len(r.g.polls)) })
	}
	ctx, hangUp := context.WithCancel(t.Context())
	gone, ended := make(chan string, 1), make(chan string, 1)
	go wait(ctx, gone)
	untilWaiting(1)
	hangUp()
	redistest.Want(t, "the first", <-gone, "hung up")
	untilWaiting(0)
	go wait(t.Context(), ended)
	untilWaiting(1)
	r.do("POST", "/v1/queues/q/messages?id=m", "x").want(http.StatusCreated)
	redistest.Want(t, "the second", <-ended, "200 m")
	go wait(t.Context(), ended)
	untilWaiting(1)
	r.g.stop()
	redistest.Want(t, "the third", <-ended, "200")
}

// late is a caller that hangs up after a message was taken for it, but before the answer is written.
type late struct {
	*httptest.ResponseRecorder
	hangUp func()
	set    int // calls of SetWriteDeadline
}

func (w *late) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline hangs up at its second call. The gateway calls it at the beginning of the wait, and again when there
// is a message.
func (w *late) SetWriteDeadline(time.Time) error {
	if w.set++; w.set == 2 {
		w.hangUp()
	}
	return nil
}

// If a caller hangs up after a message was taken for it, the message goes back to its queue at once, and no attempt is
// counted. Regression: a write to a connection that the caller has closed succeeds, so the gateway did not notice that
// nobody got the message. The message came back after its visibility timeout, with one attempt used up.
func TestWhoHangsUpWhenThereIsAMessageTakesNone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for queue, call := range map[string]string{
		"q": "POST /v1/queues/q/deliveries?group=g&wait_ms=30000", "ns:q": "GET /api/ns/q?timeout=30",
	} {
		r.do("POST", "/v1/queues/"+queue+"/messages?id=m", "x").want(http.StatusCreated)
		ready := func() { // moves the message to the stream, as a bridge would
			if err := r.op.MakeReady(t.Context(), queue); err != nil {
				t.Fatal(err)
			}
		}
		ready()
		ask := func(w http.ResponseWriter, ctx context.Context) {
			method, rest, _ := strings.Cut(call, " ")
			req := httptest.NewRequestWithContext(ctx, method, rest, nil)
			req.Header.Set("Authorization", "Bearer "+r.token)
			req.Header.Set("X-Token", r.token)
			r.g.serve(w, req)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		gone := &late{ResponseRecorder: httptest.NewRecorder(), hangUp: hangUp}
		ask(gone, ctx)
		redistest.Want(t, queue+": calls of SetWriteDeadline", gone.set, 2)
		if told := gone.Body.String(); strings.Contains(told, `"m"`) {
			t.Errorf("%s: the caller that hung up was told the message: %s", queue, told)
		}
		ready()
		again := httptest.NewRecorder()
		ask(again, t.Context())
		if told := again.Body.String(); !strings.Contains(told, `"m"`) {
			t.Errorf("%s: the next caller got %d %s", queue, again.Code, told)
		}
	}
}

// Waiting callers do not count against MaxRequests, and their number is bounded by MaxPolls.
func TestWaitingTakesNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests, c.MaxPolls = 1, 1 })
	ended := make(chan answer, 1)
	go func() { ended <- r.do("POST", "/v1/queues/q/deliveries?group=g&wait_ms=30000", "") }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return len(r.g.polls) == 1 && r.g.busy.Load() == 0, "nobody waits"
	})
	r.do("POST", "/v1/queues/q/deliveries?group=g&wait_ms=30000", "").refused(http.StatusServiceUnavailable, typeBusy)
	// The refused request is counted until just after its answer.
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.do("POST", "/v1/queues/q/messages?id=m", "x").status == http.StatusCreated, "there is no place"
	})
	redistest.Want(t, "messages for the caller that waited", len(r.given(<-ended)), 1)
}

// Regression: waiting callers of one token took all of MaxPolls, so that no other caller could wait for a message.
func TestCallersOfOneTokenThatWaitLeavePlacesToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPolls = 16 }) // one token may have a quarter of them
	greedy := r.allow(access.Token{Name: "greedy", Verbs: access.Verbs(), Queues: []string{"*"}})
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	asks := func(ctx context.Context, method, path, token string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, r.base+path, nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("X-Token", token)
		return client.Do(req)
	}
	const ours, jobs = "/v1/queues/q/deliveries?group=g&wait_ms=60000", "/api/ns/jobs?timeout=60"
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer hangUp()
	for i := range 8 {
		method, path := "POST", ours
		if i%2 == 1 {
			method, path = "GET", jobs
		}
		waiting.Go(func() {
			if a, err := asks(ctx, method, path, greedy); err == nil {
				_ = a.Body.Close()
			}
		})
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == 4, fmt.Sprint(len(r.g.polls)) })
	for method, path := range map[string]string{"POST": ours, "GET": "/v1/events/stats"} {
		a, err := asks(t.Context(), method, path, greedy)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		redistest.Want(t, path+" of a token that has its share", a.StatusCode, http.StatusServiceUnavailable)
	}
	job, err := asks(t.Context(), "GET", jobs, greedy)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(job.Body)
	redistest.Want(t, "lmstfy's answer", string(said), `{"error":"too many requests at the same time"}`)
	redistest.Want(t, "its status, when to come back", fmt.Sprintln(job.StatusCode, job.Header["Retry-After"], err), "503 [1] <nil>\n")
	if strings.Contains(r.log.String(), "lmstfy") {
		t.Errorf("the refused request fills the log:\n%s", r.log.String())
	}
	redistest.Want(t, "callers that wait", len(r.g.polls), 4)
	got := make(chan answer, 1)
	go func() { got <- r.do("POST", ours, "") }()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == 5, "the other token does not wait" })
	hangUp()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == 1, "places are not given back" })
	r.do("POST", "/v1/queues/q/messages?id=m", "x").want(http.StatusCreated)
	redistest.Want(t, "messages for the other token", len(r.given(<-got)), 1)
	a, err := asks(t.Context(), "POST", "/v1/queues/other/deliveries?group=g&wait_ms=1", greedy)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	redistest.Want(t, "the token waits again", a.StatusCode, http.StatusOK)
}

// A request with one invalid settlement is refused with its field, and nothing is settled.
func TestWrongSettlementsSettleNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/queues/q/messages?id=m", "x").want(http.StatusCreated)
	token := r.given(r.do("POST", "/v1/queues/q/deliveries?group=g", ""))[0].Token
	good := fmt.Sprintf(`{"token":%q}`, token)
	for body, status := range map[string]int{
		"": 400, "{}": 400, "[]": 400, "[1]": 400, "null": 400, "[" + good + `,{"tokn":"x"}]`: 400,
		"[" + good + `,{"token":"x"}]`: 422, "[" + good + `,{"token":""}]`: 422,
		"[" + strings.Repeat(good+",", 100) + good + "]":                  422,
		fmt.Sprintf(`[%s,{"token":%q,"outcome":"nothing"}]`, good, token): 422,
		fmt.Sprintf(`[%s,{"token":%q,"outcome":"snooze"}]`, good, token):  422,
		fmt.Sprintf(`[%s,{"token":%q,"in_ms":5}]`, good, token):           422,
		fmt.Sprintf(`[%s,{"token":%q,"within_ms":5}]`, good, token):       422,
		fmt.Sprintf(`[{"token":%q,"outcome":"retry","in_ms":-1}]`, token): 422,

		fmt.Sprintf(`[%s,{"token":%q,"outcome":"extend","within_ms":99999}]`, good, token): 422,
		fmt.Sprintf(`[{"token":%q,"outcome":"snooze","in_ms":1e30}]`, token):               400,
	} {
		if a := r.do("POST", "/v1/settlements", body, "Content-Type: application/json"); a.status != status {
			t.Errorf("%.60s: %d %s", body, a.status, a.body)
		}
	}
	for _, query := range []string{"", "group=g&count=0", "group=g&count=101", "group=g&wait_ms=60001", "group=g&within_ms=-1",
		"group=g&within_ms=99999999", "group=%00", "group=g&count=1&count=2"} {
		if a := r.do("POST", "/v1/queues/q/deliveries?"+query, ""); a.status != 422 && a.status != 400 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	narrow := r.allow(access.Token{Name: "narrow", Verbs: []access.Verb{access.Consume}, Queues: []string{"other"}})
	for _, path := range []string{"/v1/deliveries?queues=other,q&group=g", "/v1/settlements"} {
		r.do("POST", path, "["+good+"]", "Content-Type: application/json", "Authorization: Bearer "+narrow).
			refused(http.StatusForbidden, typeForbidden)
	}
	redistest.Want(t, "the settlement alone", r.settles(good), "[{acknowledged}]")
}

// A list of thousands of names is refused at little cost, and the answer does not repeat the names.
func TestAListOfNamesHasAnEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, query := range []string{"queues=" + strings.Repeat("a,", 30_000), "queues=a&weights=" + strings.Repeat("1,", 30_000),
		"queues=a,b&weights=1", "queues=a&weights=1,2", "queues=a&weights=" + strings.Repeat("1", 30_000),
		"queues=" + strings.Repeat("a", 60_000)} {
		a := r.do("POST", "/v1/deliveries?group=g&"+query, "")
		a.refused(http.StatusUnprocessableEntity, typeInvalid)
		if len(a.body) > 1000 {
			t.Errorf("an answer of %d bytes", len(a.body))
		}
	}
	all := make([]string, pull.MaxQueues)
	for i := range all {
		all[i] = fmt.Sprint("q", i)
	}
	r.do("POST", "/v1/deliveries?group=g&queues="+strings.Join(all, ",")+"&weights=1"+strings.Repeat(",1", pull.MaxQueues-1), "").
		want(http.StatusOK)
}

// A message that a consumer over HTTP holds can be cancelled. The consumer learns of it when it extends, and any
// settlement then ends the message.
func TestCancelWhatAConsumerHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, id := range []string{"a", "b", "ready"} {
		r.do("POST", "/v1/queues/q/messages?id="+id, "x").want(http.StatusCreated)
	}
	all := r.given(r.do("POST", "/v1/queues/q/deliveries?group=g&count=2", ""))
	cancelled := func(id, rest, want string) {
		t.Helper()
		a := r.do("DELETE", "/v1/queues/q/messages/"+id+"?running=true"+rest, "")
		a.want(http.StatusOK)
		if !strings.HasPrefix(string(a.body), `{"id":"`+id+`","verdict":"`+want+`"`) {
			t.Errorf("%s: %s", id, a.body)
		}
	}
	cancelled("ready", "", "cancelled")
	cancelled("a", "", "cancelling")
	cancelled("b", "&group=g", "cancelling")
	say := func(i int, outcome string) string {
		return fmt.Sprintf(`{"token":%q,"outcome":%q}`, all[i].Token, outcome)
	}
	redistest.Want(t, "extended", r.settles(say(0, "extend"), say(1, "extend")), "[{cancelled} {cancelled}]")
	redistest.Want(t, "settled", r.settles(say(0, "retry"), say(1, "ack")), "[{cancelled} {acknowledged}]")
	redistest.Want(t, "settled again", r.settles(say(0, "retry"), say(1, "ack")), "[{lost} {lost}]")
	r.do("DELETE", "/v1/queues/q/messages/a?running=true", "").want(http.StatusNotFound)
	r.do("DELETE", "/v1/queues/q/messages/a?group=g", "").want(http.StatusUnprocessableEntity)
	r.do("DELETE", "/v1/queues/q/messages/a?running=yes", "").want(http.StatusUnprocessableEntity)
	redistest.Want(t, "nothing comes again", len(r.given(r.do("POST", "/v1/queues/q/deliveries?group=g", ""))), 0)
}

// A receive for one group more than a queue may have is refused with the name of the group and the limit. Groups that
// exist are still served.
func TestAReceiveIsToldThatThereAreTooManyGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	receive := func(group string) answer {
		return r.do("POST", "/v1/queues/q/deliveries?group="+group, "")
	}
	for i := range pull.MaxGroups {
		r.given(receive(fmt.Sprint("group-", i)))
	}
	receive("further").refused(http.StatusUnprocessableEntity, typeInvalid).has(`"field":"group"`).has("further").
		has(fmt.Sprint("none beyond ", pull.MaxGroups))
	r.given(receive("group-0"))
}
