package gateway

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// openapi returns the OpenAPI document of the gateway.
func openapi(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// The OpenAPI document is valid by the rules of OpenAPI.
func TestTheDocumentIsValid(t *testing.T) {
	t.Parallel()
	doc := openapi(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

// The OpenAPI document and the table of routes have the same routes, with the same query parameters and verbs.
func TestTheDocumentAndTheTableHoldTheSameRoutes(t *testing.T) {
	t.Parallel()
	doc := openapi(t)
	for _, one := range routes {
		o := doc.Paths.Value(one.pattern).GetOperation(one.method)
		if o == nil {
			t.Errorf("%s %s is not described", one.method, one.pattern)
			continue
		}
		if verb := string(one.verb); verb != "" && !strings.Contains(o.Description, verb) ||
			(verb == "") != (o.Security != nil) {
			t.Errorf("%s %s: the description does not name the verb %q", one.method, one.pattern, verb)
		}
		var names []string
		for _, p := range o.Parameters {
			if p.Value.In == "query" {
				names = append(names, p.Value.Name)
			}
		}
		want := strings.Fields(one.query)
		slices.Sort(names)
		if slices.Sort(want); !slices.Equal(names, want) {
			t.Errorf("%s %s: parameters %v are described, %v are taken", one.method, one.pattern, names, want)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !slices.ContainsFunc(routes, func(one route) bool { return one.method == method && one.pattern == path }) {
				t.Errorf("%s %s is described, and is no route", method, path)
			}
		}
	}
}

// Every operation that a token does not allow is refused, and leaves Redis unchanged.
func TestNoRouteDoesAnythingWithoutTheRightToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do("POST", "/v1/queues/orders/messages?id=x&in_ms=600000", "kept").want(http.StatusCreated)
	r.do("PUT", "/v1/queues/orders/recurrences/x", `{"every_ms":3600000}`, "Content-Type: application/json").
		want(http.StatusCreated)
	elsewhere := r.allow(access.Token{Name: "elsewhere", Verbs: access.Verbs(), Queues: []string{"orders.*", "order"}})
	other := map[string]string{} // verbs that are not enough for a route → secret of a token with these verbs
	for _, one := range routes {
		if verbs := one.notEnough(); other[fmt.Sprint(verbs)] == "" {
			other[fmt.Sprint(verbs)] = r.allow(access.Token{Name: fmt.Sprint("t", len(other)), Verbs: verbs,
				Queues: []string{"*"}})
		}
	}
	// The client may register the queue after its answer.
	queuetest.EventuallyRegistered(t, r.r.Client, r.prefix, "orders", "1")
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return !strings.Contains(r.keys(), ":seen "), "the record of the client's call has not been removed yet"
	})
	before := r.keys()
	for _, one := range routes {
		if one.verb == "" {
			continue
		}
		path, body, kind := one.example("x")
		r.do(one.method, path, body, kind, "Authorization: ").refused(http.StatusUnauthorized, typeToken)
		for _, header := range []string{"Bearer wrong", "Bearer", "Basic " + r.token, r.token, "Bearer " + r.token + "x"} {
			r.do(one.method, path, body, kind, "Authorization: "+header).refused(http.StatusUnauthorized, typeToken)
		}
		for _, token := range []string{other[fmt.Sprint(one.notEnough())], elsewhere} {
			a := r.do(one.method, path, body, kind, "Authorization: Bearer "+token)
			switch one.name {
			case "list queues": // shows only the queues that the token allows
				if a.want(http.StatusOK); string(a.body) != "{\"queues\":[]}\n" {
					t.Errorf("a token that is for nothing here sees %s", a.body)
				}
			case "find":
				a.refused(http.StatusNotFound, typeNotFound)
			default:
				a.refused(http.StatusForbidden, typeForbidden)
			}
		}
	}
	if after := r.keys(); after != before {
		for _, line := range strings.Split(after, "\n") {
			if !strings.Contains(before, line) {
				t.Errorf("Redis was changed: %s", line)
			}
		}
		for _, line := range strings.Split(before, "\n") {
			if !strings.Contains(after, line) {
				t.Errorf("Redis was changed: there is no longer %s", line)
			}
		}
	}
	if log := r.log.String(); strings.Contains(log, r.token) || strings.Contains(log, elsewhere) ||
		strings.Contains(log, "kept") {
		t.Error("a secret or a payload is in the log")
	}
}

// notEnough returns the verbs that do not allow the route.
func (one route) notEnough() []access.Verb {
	return slices.DeleteFunc(access.Verbs(), func(verb access.Verb) bool {
		inspects := verb == access.Inspect || verb == access.Operate
		return verb == one.verb || inspects && (one.verb == access.Inspect || one.orInspect)
	})
}

// example returns a request of the route, for the queue orders and an ID.
func (one route) example(id string) (path, body, kind string) {
	path = strings.NewReplacer("{queue}", "orders", "{id}", id).Replace(one.pattern)
	body, kind = `{"every_ms":1000,"max_attempts":3}`, "Content-Type: application/json"
	switch one.name {
	case "publish many":
		body, kind = `{"id":"y"}`, "Content-Type: application/x-ndjson"
	case "live stats":
		path += "?queues=orders"
	case "pending", "result":
		path += "?group=g"
	case "search":
		body = `{"filter":{"queues":["orders"]}}`
	case "act":
		body = `{"action":"expire","filter":{"queues":["orders"],"text":"a"}}`
	case "receive of several":
		path += "?queues=orders&group=g"
	case "settle":
		named := base64.RawURLEncoding.EncodeToString([]byte(`{"q":"orders","g":"g","e":"1-0","i":"x"}`))
		body = fmt.Sprintf(`[{"token":%q}]`, named)
	}
	return path, body, kind
}

// A token with the verb inspect, and one with operate, get an answer from every route that only reads. A token with
// inspect gets no other route, and Redis stays unchanged. The table of routes names the routes, so a new route is
// tested, too.
func TestAnInspectorReadsEverythingAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.makeLetters("orders")
	r.do("POST", "/v1/queues/orders/messages?id=x&in_ms=600000", "").want(http.StatusCreated)
	r.do("PUT", "/v1/queues/orders/recurrences/x", `{"every_ms":3600000}`, "Content-Type: application/json").
		want(http.StatusCreated)
	var list struct{ Letters []struct{ Letter string } }
	r.do("GET", "/v1/queues/orders/dead?id=x", "").want(http.StatusOK).read(&list)
	letter := url.PathEscape(list.Letters[0].Letter)
	inspector := r.allow(access.Token{Name: "board", Verbs: []access.Verb{access.Inspect}, Queues: []string{"orders"}})
	operator := r.allow(access.Token{Name: "on-call", Verbs: []access.Verb{access.Operate}, Queues: []string{"orders"}})
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return !strings.Contains(r.keys(), ":seen "), "the record of the client's call has not been removed yet"
	})
	before := r.keys()
	reads, changes := 0, 0
	for _, one := range routes {
		id := "x"
		if strings.HasPrefix(one.pattern, letterPath) {
			id = letter
		}
		path, body, kind := one.example(id)
		if one.method != http.MethodGet && one.verb != access.Inspect {
			r.do(one.method, path, body, kind, "Authorization: Bearer "+inspector).
				refused(http.StatusForbidden, typeForbidden)
			changes++
			continue
		}
		if one.method == http.MethodGet {
			body = ""
		}
		for _, token := range []string{inspector, operator} {
			if one.name == "live stats" { // it does not end
				redistest.Want(t, one.name, r.listens(token, "?queues=orders").status, http.StatusOK)
				continue
			}
			status := http.StatusOK
			if one.name == "result" {
				status = http.StatusNoContent // x is not done
			}
			r.do(one.method, path, body, kind, "Authorization: Bearer "+token).want(status)
		}
		reads++
	}
	if reads < 14 || changes < 18 { // else the table is no longer read right
		t.Errorf("%d routes that read, %d that change", reads, changes)
	}
	redistest.Want(t, "keys", r.keys(), before)
	r.do("GET", "/v1/queues", "", "Authorization: Bearer "+inspector).has(`{"queues":["orders"]}`)
	r.do("GET", "/v1/queues/orders/messages/x", "", "Authorization: Bearer "+inspector).has(`"state":"scheduled"`)
	r.do("GET", "/v1/messages/x", "", "Authorization: Bearer "+inspector).has(`"state":"scheduled"`)
}

// keys returns all keys of the prefix, each in a line with its dumped value. It leaves out the access tokens, and the
// keys seen, because a producer deletes the tokens of its calls from them after a second.
func (r *rig) keys() string {
	r.t.Helper()
	c := r.r.Client
	names, err := c.Do(r.t.Context(), c.B().Keys().Pattern(r.prefix+"*").Build()).AsStrSlice()
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		if name == r.prefix+":tokens" { // its bytes depend on when the server moved them
			continue
		}
		if strings.HasSuffix(name, "}:seen") {
			continue
		}
		text, err := c.Do(r.t.Context(), c.B().Dump().Key(name).Build()).ToString()
		if rueidis.IsRedisNil(err) { // deleted meanwhile
			continue
		}
		if err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %x\n", name, text)
	}
	return b.String()
}

// A name that a proxy or the server would read as another path is refused, and nothing is redirected.
func TestAPathNeverMeansAnotherOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, path := range []string{"/v1/queues/../queues", "/v1/queues/%2e%2e/stats", "/v1/queues/./stats", "/v1//queues",
		"/v1/queues/", "/v1/queues/orders/stats/", "/v1/queues/a%2fb/stats", "/v1/queues/%7bx%7d/stats",
		"/v1/queues/a%00/stats",
		"/v1/queues/%ff/stats", "/v1/queues/a%20b/stats", "/v1/queues/orders/messages/%2e%2e", "/v1/queues/{orders}/stats",
		"/v1/queues/" + strings.Repeat("a", 129) + "/stats", "/v1/queues/orders%3fx/stats"} {
		if a := r.do("GET", path, ""); a.status != http.StatusBadRequest {
			t.Errorf("%s: status %d, want 400\n%s", path, a.status, a.body)
		}
	}
	r.do("GET", "/v1/queues/orders/messages/a%00b", "").refused(http.StatusUnprocessableEntity, typeInvalid).
		has(`"field":"id"`)
	r.do("GET", "/v1/nothing", "").refused(http.StatusNotFound, typeNoRoute)
	r.do("GET", "/", "").want(http.StatusBadRequest)
	if a := r.do("PUT", "/v1/queues/orders/stats", "").refused(http.StatusMethodNotAllowed,
		typeMethod); a.header.Get("Allow") != "GET" {
		t.Errorf("Allow: %s", a.header.Get("Allow"))
	}
	r.do("GET", "/v1/queues/orders/stats?a=b", "").refused(http.StatusBadRequest, typeMalformed).has(`"field":"a"`)
	r.do("GET", "/v1/queues/orders/schedule?limit=1&limit=2", "").refused(http.StatusBadRequest, typeMalformed)
	r.do("GET", "/v1/queues/orders/schedule?limit=%zz", "").refused(http.StatusBadRequest, typeMalformed)
	// an ID may hold what a name of a queue may not
	r.do("POST", "/v1/queues/orders/messages?in_ms=60000&id=a%2F..%2Fb%7B%25", "").want(http.StatusCreated)
	r.do("DELETE", "/v1/queues/orders/messages/a%2F..%2Fb%7B%25", "").want(http.StatusNoContent)
}
