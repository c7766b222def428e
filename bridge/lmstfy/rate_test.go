package lmstfy_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/duestream/duestream/bridge/access"
)

// Every published job counts against the rate of its token, here a burst of three. Regression: republish was not
// charged, and a bulk of 64 jobs was charged as one.
func TestEveryJobThatIsPublishedCountsAgainstTheRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	limited := func(name string) string {
		t.Helper()
		secret, err := r.op.AddToken(t.Context(), access.Token{Name: name, Verbs: []access.Verb{access.Publish},
			Queues: []string{"ns:*"}, Rate: "1/h", Burst: 3})
		if err != nil {
			t.Fatal(err)
		}
		return "X-Token: " + secret
	}
	publish, bulk, republish := "/api/ns/rated", "/api/ns/rated/bulk", "/api/ns/rated/job/01M80K6PCFJX3AQJPDV0000000"
	for i, c := range []struct {
		name   string
		first  string
		body   string
		second string
	}{
		{"a bulk of all, then a job", bulk, "[1,2,3]", publish},
		{"a bulk of more than the burst, then a job", bulk, "[1,2,3,4]", publish},
		{"a bulk of all, then a republish", bulk, "[1,2,3]", republish},
	} {
		token := limited(strconv.Itoa(i))
		if got := r.do("PUT", c.first, c.body, token); got.status != http.StatusCreated {
			t.Errorf("%s: the first is %d %s", c.name, got.status, got.body)
		}
		if got := r.do("PUT", c.second, "x", token); got.status != http.StatusTooManyRequests ||
			got.header.Get("Retry-After") == "" {
			t.Errorf("%s: the second is %d %s", c.name, got.status, got.body)
		}
	}
	token := limited("more")
	// The second bulk is refused, because two jobs are left of the burst. A refused request is not charged.
	for i, want := range []int{201, 429, 201, 201, 429} {
		bodies := []string{"[1]", "[1,2,3]", "[1]", "[1]", "[1"}
		if got := r.do("PUT", bulk, bodies[i], token); got.status != want {
			t.Errorf("bulk %d %s: %d, not %d", i, bodies[i], got.status, want)
		}
	}
	token = limited("republish")
	for i, want := range []int{201, 201, 201, 429} {
		if got := r.do("PUT", republish, "x", token); got.status != want {
			t.Errorf("republish %d: %d, not %d", i, got.status, want)
		}
	}
}

// A request that delivers or publishes no job is not charged, and neither is settling.
func TestWhatIsRefusedOrFindsNothingIsFree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, err := r.op.AddToken(t.Context(), access.Token{Name: "limited", Verbs: access.Verbs(), Queues: []string{"ns:*"},
		Limits: &access.Limits{Consume: 1, Publish: 1, Interval: 86400}})
	if err != nil {
		t.Fatal(err)
	}
	token, bearer := "X-Token: "+secret, "Authorization: Bearer "+secret
	for i, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/api/ns/free", "", 404},
		{"GET", "/api/ns/free?timeout=1", "", 404},
		{"GET", "/api/ns/free?count=0", "", 400},
		{"PUT", "/api/ns/free?tries=x", "x", 400},
		{"PUT", "/api/ns/free/bulk", "[]", 400},
		{"PUT", "/api/ns/free/job/01M80K6PCFJX3AQJPDV0000000?delay=-1", "x", 400},
		{"PUT", "/api/ns/free", "x", 201},
		{"PUT", "/api/ns/free", "x", 429},
		{"GET", "/api/ns/free,none?timeout=5", "", 200},
		{"GET", "/api/ns/free", "", 429},
		{"POST", "/v1/settlements", "[]", 400},
		{"POST", "/v1/settlements", `[{"token":"x"}]`, 422},
	} {
		if got := r.do(c.method, c.path, c.body, token, bearer); got.status != c.want {
			t.Errorf("%d %s %s: %d %s, not %d", i, c.method, c.path, got.status, got.body, c.want)
		}
	}
}
