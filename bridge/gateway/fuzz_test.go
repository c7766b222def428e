package gateway

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
)

// nobody is an Access that refuses every caller.
type nobody struct{}

func (nobody) Authenticate(context.Context, string) (*access.Grant, error) {
	return nil, access.ErrRefused
}
func (nobody) Take(context.Context, *access.Grant, access.Verb, int) (time.Duration, error) {
	return 0, nil
}
func (nobody) GiveBack(context.Context, *access.Grant, access.Verb, int) {}
func (nobody) Audit(*access.Grant, string, string, ...slog.Attr)         {}

// closedGateway returns a gateway without Redis: a call to Redis would panic.
func closedGateway(f *testing.F) *Gateway {
	none := struct{ rueidis.Client }{}
	g, err := New(Config{Redis: &bridge.Redis{Client: none, Blocking: none}, Access: nobody{}})
	if err != nil {
		f.Fatal(err)
	}
	return g
}

// FuzzRequest: for any path, query and header, the answer is a problem and no redirect. No caller has a token, so no
// request reaches Redis.
func FuzzRequest(f *testing.F) {
	g := closedGateway(f)
	for _, path := range []string{"/v1/queues/a/messages?in_ms=1", "/v1/queues/%2e%2e/stats", "//", "/v1/../x",
		"/v1/queues/%7b%7d/dead/1%2F2",
		"/v1/queues/a/messages/%ff%00", "*"} {
		f.Add("POST", path, "Bearer x", "X-Request-Id", "abc", "body")
	}
	f.Fuzz(func(t *testing.T, method, path, authorization, name, value, body string) {
		r, err := http.NewRequest(method, "http://x"+path, strings.NewReader(body)) //nolint:noctx // nothing waits
		if err != nil {
			return
		}
		r.Header.Set(name, value)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		var p problem
		if w.Code == http.StatusOK && r.URL.Path == "/v1/openapi.json" {
			return
		}
		if w.Code < 400 || w.Code >= 500 || r.Method != http.MethodHead && json.Unmarshal(unzippedBody(w), &p) != nil ||
			p.Status != w.Code {
			t.Fatalf("%s %q: %d %s", method, path, w.Code, w.Body)
		}
	})
}

// unzippedBody returns the body of an answer, decompressed if the answer is in gzip.
func unzippedBody(w *httptest.ResponseRecorder) []byte {
	if w.Header().Get("Content-Encoding") != "gzip" {
		return w.Body.Bytes()
	}
	text, _ := io.ReadAll(&unzipped{body: io.NopCloser(w.Body)})
	return text
}

// FuzzLine: any line of a batch is a message with values within their limits, or gives a problem with status 400 or
// 422.
func FuzzLine(f *testing.F) {
	for _, line := range []string{`{"id":"a","payload":"x","in_ms":5}`, `{"payload":{"a":1}}`,
		`{"payload_base64":"//4="}`, `[]`, `{"a`,
		`{"retry_delays_ms":[1,2]}`, `{"payload":"\ud800"}`, "{\"payload\":\"\xff\"}"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseLine([]byte(line))
		if err != nil {
			if p := problemOf(err); p.Status != http.StatusBadRequest && p.Status != http.StatusUnprocessableEntity {
				t.Fatalf("%q: %v is %d", line, err, p.Status)
			}
			return
		}
		if m.Delay < 0 || m.Spread < 0 || m.Dedup < 0 || m.MaxAttempts < 0 {
			t.Fatalf("%q: %+v", line, m)
		}
	})
}

// FuzzBody: parsing any compressed body, policy or query returns a value or an error, and does not panic.
func FuzzBody(f *testing.F) {
	f.Add(zipped(`{"max_attempts":3}`), "in_ms=5&id=a")
	f.Add(`{"visibility_ms":null,"rate":"5/s"}`, "rate=1e3")
	f.Fuzz(func(t *testing.T, body, raw string) {
		_, _ = io.ReadAll(io.LimitReader(&unzipped{body: io.NopCloser(strings.NewReader(body))}, 1<<20))
		_, _ = parsePolicy([]byte(body))
		for _, one := range routes {
			q, err := parseQuery(raw, one.query)
			if err != nil {
				continue
			}
			_, _ = parseOptions(q)
			_, _ = requiredFilter(q)
			_, _ = q.rate("rate")
		}
	})
}
