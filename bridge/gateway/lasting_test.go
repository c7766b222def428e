package gateway

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// lineStream is a batch of lines whose request goes on: a test writes lines to in, and reads their answers from out.
type lineStream struct {
	*rig
	in  *io.PipeWriter
	out *bufio.Scanner
}

// streams begins a batch with one line, and waits for the answer to that line.
func (r *rig) streams(token string) *lineStream {
	r.t.Helper()
	body, in := io.Pipe()
	req, _ := http.NewRequestWithContext(r.t.Context(), "POST", r.base+"/v1/queues/q/batch", body)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/x-ndjson")
	s := &lineStream{rig: r, in: in}
	go func() { _, _ = io.WriteString(in, "{}\n") }()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = in.Close()
		_ = res.Body.Close()
	})
	s.out = bufio.NewScanner(res.Body)
	if !s.out.Scan() {
		r.t.Fatal("the first line is not answered")
	}
	return s
}

// A token that is revoked ends the requests that are in progress: it is checked again for each part of a stream, and
// before a waiting caller gets a message. Such a message goes back to its queue.
func TestWhatLastsEndsWithItsToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	publisher := r.allow(access.Token{Name: "p", Verbs: []access.Verb{access.Publish}, Queues: []string{"q"}})
	consumer := r.allow(access.Token{Name: "c", Verbs: []access.Verb{access.Consume}, Queues: []string{"q"}})
	s := r.streams(publisher)
	r.do("POST", "/v1/queues/q/deliveries?group=g", "").want(http.StatusOK)
	waits := make(chan answer, 1)
	go func() {
		waits <- r.do("POST", "/v1/queues/q/deliveries?group=g&wait_ms=30000", "", "Authorization: Bearer "+consumer)
	}()
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { return len(r.g.polls) == 1, "nobody waits" })
	for _, name := range []string{"p", "c"} {
		if err := r.op.RemoveToken(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		a := r.do("POST", "/v1/queues/q/deliveries?group=g", "", "Authorization: Bearer "+consumer)
		return a.status == http.StatusUnauthorized, "the revoked token is still accepted"
	})
	r.do("POST", "/v1/queues/q/messages?id=m", "x").want(http.StatusCreated)
	(<-waits).refused(http.StatusUnauthorized, typeToken)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) { // the message was released
		a := r.do("GET", "/v1/queues/q/stats", "")
		return strings.Contains(string(a.body), `"scheduled":1`), string(a.body)
	})
	if _, err := io.WriteString(s.in, "{}\n"); err != nil {
		t.Fatal(err)
	}
	if !s.out.Scan() || !strings.Contains(s.out.Text(), typeToken) || s.out.Scan() {
		t.Errorf("the stream goes on: %s", s.out.Text())
	}
}

// A stream that waits for its caller does not count against MaxRequests.
func TestIdleStreamsTakeNoPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests = 1 })
	for range 3 {
		redistest.Eventually(t, 10*time.Second, func() (bool, string) { return r.g.busy.Load() == 0, "a request is busy" })
		r.streams(r.token)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.do("GET", "/v1/queues", "").status == http.StatusOK, "there is no place"
	})
}

// A stream that waits for its token's rate, perhaps for an hour, does not count against MaxRequests. It ends when the
// token is revoked.
func TestAStreamThatWaitsForItsRateTakesNoPlaceAndEndsWithItsToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxRequests = 1 })
	s := r.streams(r.allow(access.Token{Name: "p", Verbs: []access.Verb{access.Publish}, Queues: []string{"q"}, Rate: "1/h"}))
	if _, err := io.WriteString(s.in, "{}\n"); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.do("GET", "/v1/queues", "").status == http.StatusOK, "there is no place"
	})
	if err := r.op.RemoveToken(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if !s.out.Scan() || !strings.Contains(s.out.Text(), typeToken) || s.out.Scan() {
		t.Errorf("the stream goes on: %s", s.out.Text())
	}
	redistest.Eventually(t, 10*time.Second,
		func() (bool, string) { return r.g.busy.Load() == 0, "the stream is still busy" })
}

// A batch has at most maxItems messages, however small its body is. A payload that JSON cannot hold unchanged is
// refused, and a malformed batch stores nothing.
func TestABatchIsBoundedAndKeepsItsBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	many := "[0" + strings.Repeat(",0", maxItems) + "]"
	r.do("POST", "/v1/queues/q/batch", many, jsonType).refused(http.StatusUnprocessableEntity, typeInvalid)
	r.do("POST", "/v1/queues/q/batch", many[:len(many)-3]+"]", jsonType).want(http.StatusOK) // one item less
	for _, body := range []string{"", "{}", "[", "[{}", "[{}]x", "[{}][]", "[{} {}]", "null", "[,]"} {
		r.do("POST", "/v1/queues/q/batch", body, jsonType).refused(http.StatusBadRequest, typeMalformed)
	}
	r.do("POST", "/v1/queues/q/batch", "[]", jsonType).want(http.StatusOK).has(`"results":[]`)
	r.do("POST", "/v1/queues/q/batch", "{\"id\":\"a\",\"payload\":\"\xff\"}\n", ndjsonType).want(http.StatusOK).has("UTF-8")
	redistest.Want(t, "taken", len(r.given(r.do("POST", "/v1/queues/q/deliveries?group=g", ""))), 0)
}

// While a stream waits for its rate, the gateway does not notice that its caller hangs up. So the gateway does not wait
// longer than Timeout: it ends the stream, and reports the line at which it stopped. A stream of any length goes on if
// each of its parts passes soon.
func TestAStreamDoesNotWaitLongForItsRate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.Timeout = 2 * time.Second })
	publish := func(name string, rate lua.Rate, burst int) string {
		return r.allow(access.Token{Name: name, Verbs: []access.Verb{access.Publish}, Queues: []string{"q"}, Rate: rate,
			Burst: burst})
	}
	s := r.streams(publish("slow", "1/h", 2))
	if _, err := io.WriteString(s.in, "{}\n{}\n{}\n"); err != nil {
		t.Fatal(err)
	}
	if !s.out.Scan() || !strings.Contains(s.out.Text(), `{"line":2,"id":`) {
		t.Error("the second line is in the burst: ", s.out.Text())
	}
	if !s.out.Scan() || !strings.Contains(s.out.Text(), `{"line":3,"problem":{"type":"`+typeRate) || s.out.Scan() {
		t.Error("the stream goes on: ", s.out.Text())
	}
	fast := "Authorization: Bearer " + publish("fast", "100/s", 60)
	r.do("POST", "/v1/queues/q/batch", strings.Repeat("{}\n", 360), ndjsonType, fast).want(http.StatusOK).has(`{"line":360,"id":`)
}
