package lmstfy_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/duestream/duestream/bridge/gateway/access"
)

// Republish went past the rate of a token, and a bulk of 64 counted as one.
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
	token := limited("republish")
	for i, want := range []int{201, 201, 201, 429} {
		if got := r.do("PUT", republish, "x", token); got.status != want {
			t.Errorf("republish %d: %d, not %d", i, got.status, want)
		}
	}
}
