package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A list of messages, or of dead letters, ends before its payloads have more than 16 MiB, and says so. Regression: one
// request for 300 payloads of 1 MiB took two gigabytes.
func TestAListHasBoundedPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.MaxPayload = 16 << 20 })
	payload := strings.Repeat("x", maxAnswered/2)
	keys := lua.NewKeys(r.prefix, "q")
	for _, id := range []string{"a", "b", "c"} {
		r.do("POST", "/v1/queues/q/messages?in_ms=3600000&id="+id, payload).want(http.StatusCreated)
		add := r.r.Client.B().Xadd().Key(keys.Dead).Id("*").FieldValue().FieldValue("id", id).
			FieldValue("payload", payload).FieldValue("group", "g").FieldValue("reason", "dead_letter").Build()
		if err := r.r.Client.Do(t.Context(), add).Error(); err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Next, Letters []struct{ ID string }
		Total         int
		More          bool
	}
	for path, want := range map[string]struct {
		n    int
		more bool
	}{
		"schedule?limit=1000&payloads=true": {2, true},
		"schedule?limit=2&payloads=true":    {2, false},
		"schedule?limit=1000":               {3, false},
		"dead?limit=1000":                   {2, true},
		"dead?limit=2":                      {2, false},
	} {
		list.Next, list.Letters, list.More = nil, nil, false
		r.do("GET", "/v1/queues/q/"+path, "").want(http.StatusOK).read(&list)
		redistest.Want(t, "length of "+path, len(list.Next)+len(list.Letters), want.n)
		redistest.Want(t, "more of "+path, list.More, want.more)
	}
	r.do("POST", "/v1/queues/one/messages?in_ms=3600000", payload+payload).want(http.StatusCreated)
	r.do("GET", "/v1/queues/one/schedule?payloads=true", "").want(http.StatusOK).read(&list)
	redistest.Want(t, "length of a list with the largest payload", len(list.Next), 1)
}

// Few requests read payloads at a time. One token cannot take all their places.
func TestATokenDoesNotReadAllPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.Timeout = time.Second })
	r.do("POST", "/v1/queues/q/messages?in_ms=3600000&id=a", "x").want(http.StatusCreated)
	greedy := r.allow(access.Token{Name: "greedy", Verbs: []access.Verb{access.Inspect}, Queues: []string{"*"}})
	var ends []func()
	for range maxReads / 2 {
		ends = append(ends, redistest.Must(r.g.reads.begin(t.Context(), "greedy")))
	}
	paths := []string{"/v1/queues/q/messages/a", "/v1/messages/a", "/v1/queues/q/schedule", "/v1/queues/q/dead",
		"/v1/queues/q/dead/1-1", "/v1/queues/q/recurrences", "/v1/queues/q/recurrences/x"}
	answers := make(chan answer, len(paths))
	for _, path := range paths {
		go func() { answers <- r.do("GET", path, "", "Authorization: Bearer "+greedy) }()
	}
	for range paths {
		(<-answers).want(http.StatusServiceUnavailable)
	}
	r.do("GET", paths[0], "").want(http.StatusOK) // another token
	for _, end := range ends {
		end()
	}
	r.do("GET", paths[0], "", "Authorization: Bearer "+greedy).want(http.StatusOK)
	r.g.reads.mu.Lock()
	defer r.g.reads.mu.Unlock()
	redistest.Want(t, "places that are taken", r.g.reads.taken+len(r.g.reads.by)+len(r.g.reads.waiting), 0)
}

// A request that waits for a place gets it in its turn. If enough requests of its token wait, a request is refused.
func TestReadersWaitInTheirOrder(t *testing.T) {
	t.Parallel()
	r := &readers{most: 2, waiters: 1}
	end := redistest.Must(r.begin(t.Context(), "a"))
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		end, err := r.begin(ctx, "a")
		if err == nil {
			end()
		}
		got <- err
	}()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.waiting) == 1, "no request waits"
	})
	_, err := r.begin(t.Context(), "a")
	redistest.Want(t, "a second one that waits", err, error(errTooManyReads))
	redistest.Must(r.begin(t.Context(), "b"))()
	end()
	redistest.Want(t, "the one that waited", <-got, error(nil))
	end = redistest.Must(r.begin(t.Context(), "a"))
	go func() {
		_, err := r.begin(ctx, "a")
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that left: %v", err)
	}
	end()
	redistest.Want(t, "places", r.taken+len(r.by)+len(r.waiting), 0)
}

// Large answers to a token that wait to be read are bounded by their bytes, too. One alone may have any size.
func TestUnreadAnswersHaveBoundedBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	payload := make([]byte, 2*largeAnswer)
	_, _ = rand.Read(payload) // gzip does not shorten it
	r.do("POST", "/v1/queues/q/messages?in_ms=3600000&id=a", string(payload)).want(http.StatusCreated)
	r.do("POST", "/v1/queues/q/messages?in_ms=3600000&id=small", "x").want(http.StatusCreated)
	r.g.unread.limit = largeAnswer / 2
	r.do("GET", "/v1/queues/q/messages/a", "").want(http.StatusOK)
	r.g.unread.add("all", 1)
	r.do("GET", "/v1/queues/q/messages/a", "").refused(http.StatusServiceUnavailable, typeBusy)
	r.do("GET", "/v1/queues/q/messages/small", "").want(http.StatusOK)
	r.g.unread.add("all", -1)
	r.do("GET", "/v1/queues/q/messages/a", "").want(http.StatusOK)
	redistest.Want(t, "bytes that are counted", r.g.unread.count("all"), 0)
}

// A caller that has too many unread answers gets no large message. The message is released, with the same attempt.
func TestADeliveryWithoutRoomForItsAnswerIsGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	payload := strings.Repeat("x", 2*largeAnswer)
	r.do("POST", "/v1/queues/q/messages?id=a", payload).want(http.StatusCreated)
	r.g.unread.limit = largeAnswer
	r.g.unread.add("all", 1)
	r.do("POST", "/v1/queues/q/deliveries?group=g", "").refused(http.StatusServiceUnavailable, typeBusy)
	r.g.unread.add("all", -1)
	stats := redistest.Must(r.op.Stats(t.Context(), "q"))
	redistest.Want(t, "scheduled again, pending", fmt.Sprint(stats.Scheduled, stats.Groups[0].Pending), "1 0")
	redistest.Want(t, "bytes that are counted", r.g.unread.count("all"), 0)
}

// A body counts for its token until the request is answered. Regression: it counted only while it was read, and 40
// batches of 16 MiB took two gigabytes while they were decoded.
func TestABodyCountsUntilTheRequestIsAnswered(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	redis := redistest.Must(bridge.Dial(t.Context(), server.URL()))
	defer redis.Close()
	store := redistest.Must(access.Open(access.Config{Client: redis.Client, Prefix: server.Prefix(t)}))
	g := redistest.Must(New(Config{Redis: redis, Prefix: server.Prefix(t), Access: store}))
	counted := 0
	g.Mount("/body/", func(c *Call) {
		c.Grant = &access.Grant{}
		if _, err := c.Body(100); err != nil {
			t.Error(err)
		}
		counted = g.bytes.count("")
		c.W.WriteHeader(http.StatusOK)
	}, func(context.Context) {})
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/body/", strings.NewReader("12345"))
	g.Handler().ServeHTTP(httptest.NewRecorder(), request)
	redistest.Want(t, "bytes that count before the answer, after it", fmt.Sprint(counted, g.bytes.count("")), "5 0")
	redistest.Want(t, "result of Close", g.Close(), nil)
}

// A forecast counts what is due within the time of the query, one minute by default, for all groups or for one. It
// refuses wrong parameters, an unknown queue, and a token for other queues or without the verb inspect.
func TestForecastOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id, in := range map[string]string{"a": "50000", "b": "1800000", "c": "172800000"} {
		r.do("POST", "/v1/queues/q/messages?id="+id+"&in_ms="+in, "x").want(http.StatusCreated)
	}
	const path = "/v1/queues/q/forecast"
	total := func(query string) string {
		t.Helper()
		var f admin.QueueForecast
		r.do("GET", path+query, "").want(http.StatusOK).read(&f)
		return fmt.Sprint(time.Duration(f.Within), f.Due, f.Total, len(f.Groups))
	}
	redistest.Want(t, "by default", total(""), "1m0s 1 1 0")
	redistest.Want(t, "within an hour", total("?within_ms=3600000&group=new"), "1h0m0s 2 2 1")
	redistest.Want(t, "within 10 years", total("?within_ms=315360000000"), "87600h0m0s 3 3 0")
	r.do("GET", path+"?group=g", "").has(`"groups":[{"name":"g","missing":true,"lag":0,"pending":0,"total":1}]`)
	invalid := []string{"?within_ms=-1", "?within_ms=315360000001", "?within_ms=60s", "?within_ms=", "?group="}
	for _, query := range invalid {
		r.do("GET", path+query, "").refused(http.StatusUnprocessableEntity, typeInvalid)
	}
	r.do("GET", path+"?within=60s", "").refused(http.StatusBadRequest, typeMalformed).has(`"field":"within"`)
	r.do("GET", "/v1/queues/qq/forecast", "").refused(http.StatusNotFound, typeNotFound)
	for _, token := range []access.Token{
		{Name: "other", Verbs: []access.Verb{access.Inspect}, Queues: []string{"other"}},
		{Name: "worker", Verbs: []access.Verb{access.Consume, access.Publish}, Queues: []string{"*"}},
	} {
		r.do("GET", path, "", "Authorization: Bearer "+r.allow(token)).refused(http.StatusForbidden, typeForbidden)
	}
	r.do("GET", path, "", "Authorization: ").refused(http.StatusUnauthorized, typeToken)
}
