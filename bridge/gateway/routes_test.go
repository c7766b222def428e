package gateway

import (
	"encoding/base64"
	"fmt"
	"net/http"
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

func TestTheDocumentIsValid(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheDocumentAndTheTableHoldTheSameRoutes(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range routes {
		o := doc.Paths.Value(one.pattern).GetOperation(one.method)
		if o == nil {
			t.Errorf("%s %s is not described", one.method, one.pattern)
			continue
		}
		if verb := string(one.verb); verb != "" && !strings.Contains(o.Description, verb) ||
			(verb == "") != (o.Security != nil) {
			t.Errorf("%s %s: not described is that it takes the verb %q", one.method, one.pattern, verb)
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
	other := map[access.Verb]string{}
	elsewhere := r.allow(access.Token{Name: "elsewhere", Verbs: access.Verbs(), Queues: []string{"orders.*", "order"}})
	for _, verb := range access.Verbs() {
		verbs := slices.DeleteFunc(access.Verbs(), func(v access.Verb) bool { return v == verb })
		other[verb] = r.allow(access.Token{Name: "not-" + string(verb), Verbs: verbs, Queues: []string{"*"}})
	}
	queuetest.EventuallyRegistered(t, r.r.Client, r.prefix, "orders", "1") // a client may register it after its answer
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		return !strings.Contains(r.keys(), ":seen "), "the client has not forgotten its call yet"
	})
	before := r.keys()
	for _, one := range routes {
		if one.verb == "" {
			continue
		}
		path := strings.NewReplacer("{queue}", "orders", "{id}", "x").Replace(one.pattern)
		body, kind := `{"every_ms":1000,"max_attempts":3}`, "Content-Type: application/json"
		switch one.name {
		case "publish many":
			body, kind = `{"id":"y"}`, "Content-Type: application/x-ndjson"
		case "live stats":
			path += "?queues=orders"
		case "receive of several":
			path += "?queues=orders&group=g"
		case "settle":
			named := base64.RawURLEncoding.EncodeToString([]byte(`{"q":"orders","g":"g","e":"1-0","i":"x"}`))
			body = fmt.Sprintf(`[{"token":%q}]`, named)
		}
		r.do(one.method, path, body, kind, "Authorization: ").refused(http.StatusUnauthorized, typeToken)
		for _, header := range []string{"Bearer wrong", "Bearer", "Basic " + r.token, r.token, "Bearer " + r.token + "x"} {
			r.do(one.method, path, body, kind, "Authorization: "+header).refused(http.StatusUnauthorized, typeToken)
		}
		for _, token := range []string{other[one.verb], elsewhere} {
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

// keys returns all keys of the prefix, with their values.
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
