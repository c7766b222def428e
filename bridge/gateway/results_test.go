package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

const resultPath = "/v1/queues/q/messages/%s/result?group=g&wait_ms=%d"

// take publishes messages, and gives them to group g.
func (r *rig) take(ids ...string) map[string]delivery {
	r.t.Helper()
	for _, id := range ids {
		r.do("POST", "/v1/queues/q/messages?result_ms=60000&id="+id, "x").want(http.StatusCreated)
	}
	all := map[string]delivery{}
	for _, d := range r.given(r.do("POST", fmt.Sprint("/v1/queues/q/deliveries?group=g&count=", len(ids)), "")) {
		all[d.ID] = d
	}
	if len(all) != len(ids) {
		r.t.Fatalf("%d of %d messages are delivered", len(all), len(ids))
	}
	return all
}

// succeed acknowledges a delivery with a result, as a worker does.
func (r *rig) succeed(d delivery, value string) {
	r.t.Helper()
	ticket := redistest.Must(d.Token.Read())
	held := lua.Held{Entry: ticket.Entry, ID: d.ID}
	ok, err := lua.AckResult(r.t.Context(), r.r.Client, lua.NewKeys(r.prefix, "q"), "g", held, 3, time.Minute,
		[]byte(value))
	if err != nil || !ok {
		r.t.Fatal(ok, err)
	}
}

// untilPolls waits until n requests wait at the gateway.
func (r *rig) untilPolls(n int) {
	r.t.Helper()
	redistest.Eventually(r.t, 10*time.Second, func() (bool, string) {
		return len(r.g.polls) == n, fmt.Sprint(len(r.g.polls))
	})
}

// A caller gets the result of a message, or the reason why there is none. With wait_ms the caller waits for it.
func TestResultTellsWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all := r.take("done", "bytes", "dies", "open")
	get := func(id string, wait int) answer { return r.do("GET", fmt.Sprintf(resultPath, id, wait), "") }
	waited := make(chan answer, 1)
	go func() { waited <- get("done", 60_000) }()
	r.untilPolls(1)
	r.succeed(all["done"], "paid")
	(<-waited).want(http.StatusOK).has(`{"queue":"q","id":"done","group":"g","value":"paid","attempt":3,"done":"`)
	r.succeed(all["bytes"], "\xff")
	get("bytes", 0).want(http.StatusOK).has(`"value":{"base64":"/w=="}`)
	r.settles(fmt.Sprintf(`{"token":%q,"outcome":"dead","error":"secret"}`, all["dies"].Token))
	for _, wait := range []int{0, 20, 60_000} {
		told := func(id string) (a answer) { // a short request may end before its search
			redistest.Eventually(t, 20*time.Second, func() (bool, string) {
				a = get(id, wait)
				return a.status != http.StatusNoContent, "not known yet"
			})
			return a
		}
		a := told("dies").refused(http.StatusGone, typeDead).has(`"reason":"dead_letter"`)
		redistest.Want(t, "the error of the handler is hidden", !strings.Contains(string(a.body), "secret"), true)
		told("never").refused(http.StatusNotFound, typeNotFound)
	}
	get("open", 0).want(http.StatusNoContent)
	get("open", 20).want(http.StatusNoContent)
	r.do("GET", "/v1/queues/q/messages/open/result?group=none&wait_ms=60000", "").refused(http.StatusNotFound, typeNoGroup)
	r.do("GET", "/v1/queues/none/messages/x/result?group=g", "").refused(http.StatusNotFound, typeNotFound)
	for _, query := range []string{"", "?group=g&wait_ms=60001", "?group=g&wait_ms=-1", "?group=a%0Ab"} {
		r.do("GET", "/v1/queues/q/messages/open/result"+query, "").refused(http.StatusUnprocessableEntity, typeInvalid)
	}
	// A gateway that stops answers the requests that wait.
	go func() { waited <- get("open", 60_000) }()
	r.untilPolls(1)
	r.g.stop()
	(<-waited).want(http.StatusNoContent)
}

// A token needs the verb inspect on the queue, also at the end of the wait. The limit of requests of a token that wait
// also holds for results.
func TestResultsAreForTokensThatMayInspect(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPolls = 4 }) // 1 for each token
	all := r.take("m")
	token := func(name string, verb access.Verb, queue string) string {
		one := access.Token{Name: name, Verbs: []access.Verb{verb}, Queues: []string{queue}}
		return "Authorization: Bearer " + r.allow(one)
	}
	path := fmt.Sprintf(resultPath, "m", 60_000)
	for _, one := range []string{token("a", access.Publish, "q"), token("b", access.Consume, "q"),
		token("c", access.Inspect, "other")} {
		r.do("GET", path, "", one).refused(http.StatusForbidden, typeForbidden)
	}
	inspector := token("inspector", access.Inspect, "q")
	waited := make(chan answer, 1)
	go func() { waited <- r.do("GET", path, "", inspector) }()
	r.untilPolls(1)
	r.do("GET", path, "", inspector).refused(http.StatusServiceUnavailable, typeBusy)
	if err := r.op.RemoveToken(t.Context(), "inspector"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		a := r.do("GET", "/v1/queues/q/stats", "", inspector)
		return a.status == http.StatusUnauthorized, fmt.Sprint(a.status)
	})
	r.succeed(all["m"], "secret")
	(<-waited).refused(http.StatusUnauthorized, typeToken)
}

// One token cannot take all waits for results that a gateway allows.
func TestATokenWaitsForFewResults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.g.results.limit = 1
	all := r.take("m")
	waited := make(chan answer, 1)
	go func() { waited <- r.do("GET", fmt.Sprintf(resultPath, "m", 60_000), "") }()
	r.untilPolls(1)
	r.do("GET", fmt.Sprintf(resultPath, "m", 60_000), "").refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", fmt.Sprintf(resultPath, "m", 0), "").want(http.StatusNoContent)
	another := access.Token{Name: "another", Verbs: []access.Verb{access.Inspect}, Queues: []string{"q"}}
	r.do("GET", fmt.Sprintf(resultPath, "m", 20), "", "Authorization: Bearer "+r.allow(another)).want(http.StatusNoContent)
	r.succeed(all["m"], "paid")
	(<-waited).want(http.StatusOK)
	r.do("GET", fmt.Sprintf(resultPath, "m", 60_000), "").want(http.StatusOK)
}

// A caller that hangs up ends its wait.
func TestAWaitForAResultEndsWhenItsCallerHangsUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.take("m")
	ctx, hangUp := context.WithCancel(t.Context())
	req := redistest.Must(http.NewRequestWithContext(ctx, "GET", r.base+fmt.Sprintf(resultPath, "m", 60_000), nil))
	req.Header.Set("Authorization", "Bearer "+r.token)
	ended := make(chan error, 1)
	go func() {
		answer, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = answer.Body.Close()
		}
		ended <- err
	}()
	r.untilPolls(1)
	hangUp()
	if err := <-ended; err == nil {
		t.Error("the request was answered")
	}
	r.untilPolls(0)
}

// A wait goes on while Redis does not answer. If Redis still does not answer at the end of the wait, the answer is 503,
// and not 204, which would mean that the message is not done.
func TestAResultIsUnknownWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRigAt(t, server.URL(), server.Prefix(t), func(c *Config) { c.Timeout = time.Second })
	r.take("m")
	waited := make(chan answer, 1)
	go func() { waited <- r.do("GET", fmt.Sprintf(resultPath, "m", shortWait.Milliseconds()), "") }()
	r.untilPolls(1)
	server.Stop()
	(<-waited).want(http.StatusServiceUnavailable)
}
