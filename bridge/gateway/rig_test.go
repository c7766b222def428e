package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// described is the OpenAPI document, as an independent library reads it.
var described = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

func init() {
	openapi3filter.RegisterBodyDecoder("application/x-ndjson", openapi3filter.FileBodyDecoder)
	openapi3filter.RegisterBodyDecoder("application/problem+json", openapi3filter.JSONBodyDecoder)
}

// MountLmstfy mounts lmstfy's API, which shares the limits. An external test sets it: lmstfy imports this package.
var MountLmstfy func(*Gateway) error

// rig is a listening gateway without a bridge, with a token that allows everything. Each answer is checked against the
// OpenAPI document.
type rig struct {
	t      *testing.T
	g      *Gateway
	r      *bridge.Redis
	op     *admin.Admin
	prefix string
	base   string        // URL of the gateway, without a path
	token  string        // secret of the token that allows everything
	log    *lockedBuffer // of the gateway, from level Debug on
}

// lockedBuffer is a buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newRig returns a rig on the shared server. Each function of with changes the configuration of the gateway.
func newRig(t *testing.T, with ...func(*Config)) *rig {
	t.Helper()
	server := redistest.Shared(t)
	return newRigAt(t, server.URL(), server.Prefix(t), with...)
}

func newRigAt(t *testing.T, redisURL, prefix string, with ...func(*Config)) *rig {
	t.Helper()
	rig := &rig{t: t, prefix: prefix, log: &lockedBuffer{}}
	log := slog.New(slog.NewTextHandler(rig.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if rig.r, err = bridge.Dial(t.Context(), redisURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rig.r.Close)
	rig.op = redistest.Must(admin.New(rig.r, prefix))
	store, err := access.Open(access.Config{Client: rig.r.Client, Prefix: prefix, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Redis: rig.r, Prefix: prefix, Access: store, Logger: log}
	for _, set := range with {
		set(&cfg)
	}
	if rig.g, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if err := MountLmstfy(rig.g); err != nil {
		t.Fatal(err)
	}
	go func() { _ = rig.g.Run(context.Background()) }() // until Close
	rig.token = rig.allow(access.Token{Name: "all", Verbs: access.Verbs(), Queues: []string{"*"}})
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(rig.g)
	go func() { _ = s.Serve(socket) }()
	t.Cleanup(func() {
		_ = s.Close()
		_ = rig.g.Close()
	})
	rig.base = "http://" + socket.Addr().String()
	return rig
}

// allow stores a token and returns its secret.
func (r *rig) allow(token access.Token) string {
	r.t.Helper()
	secret, err := access.Add(r.t.Context(), r.r.Client, r.prefix, token)
	if err != nil {
		r.t.Fatal(err)
	}
	return secret
}

// answer is an answer of the gateway.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
}

// do sends a request with the rig's token, and checks the answer against the document. If the request succeeded, do
// checks the request too. Headers are "Name: value", and replace those of the rig; "Name: " removes one.
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if req.Header.Del(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	a := answer{t: r.t, status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		r.t.Fatal(err)
	}
	r.checkDescribed(req, body, a)
	return a
}

// checkDescribed checks a request and its answer against the document.
func (r *rig) checkDescribed(req *http.Request, body string, a answer) {
	r.t.Helper()
	router, err := described()
	if err != nil {
		r.t.Fatal(err)
	}
	if a.header.Get("X-Request-Id") == "" {
		r.t.Errorf("%s %s: the answer has no X-Request-Id", req.Method, req.URL)
	}
	req.URL.Host, req.URL.Scheme = "", ""
	route, params, err := router.FindRoute(req)
	if err != nil {
		if a.status < 400 {
			r.t.Errorf("%s %s answers %d and is not described: %v", req.Method, req.URL, a.status, err)
		}
		return
	}
	for name, value := range params {
		params[name], _ = url.PathUnescape(value)
	}
	options := &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: options}
	if a.status < 300 && !strings.Contains(body, "\x00") {
		req.Body = io.NopCloser(strings.NewReader(body))
		options.ExcludeRequestBody = req.Header.Get("Content-Encoding") != "" || route.Operation.RequestBody == nil ||
			route.Operation.RequestBody.Value.Content["*/*"] != nil
		if err := openapi3filter.ValidateRequest(r.t.Context(), in); err != nil {
			r.t.Errorf("%s %s succeeds, and is not as described: %v", req.Method, req.URL, err)
		}
	}
	options.ExcludeResponseBody = a.header.Get("Content-Encoding") != "" || len(a.body) == 0
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: a.status, Header: a.header,
		Options: options}
	out.SetBodyBytes(a.body)
	if err := openapi3filter.ValidateResponse(r.t.Context(), out); err != nil {
		r.t.Errorf("%s %s: the answer %d is not as described: %v\n%s", req.Method, req.URL, a.status, err, a.body)
	}
}

// want ends the test unless the answer has this status.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d\n%s", a.status, status, a.body)
	}
	return a
}

// refused ends the test unless the answer has this status. The answer must be a problem of this type, with the ID of
// the request.
func (a answer) refused(status int, kind string) answer {
	a.t.Helper()
	a.want(status)
	var p problem
	a.read(&p)
	if p.Type != kind || p.Status != status || p.Request != a.header.Get("X-Request-Id") ||
		a.header.Get("Content-Type") != "application/problem+json" {
		a.t.Errorf("problem %s, want %s\n%s", p.Type, kind, a.body)
	}
	return a
}

// read decodes the JSON of the answer.
func (a answer) read(into any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, into); err != nil {
		a.t.Fatalf("%v\n%s", err, a.body)
	}
}

// has fails the test unless the body contains the text.
func (a answer) has(text string) answer {
	a.t.Helper()
	if !strings.Contains(string(a.body), text) {
		a.t.Errorf("no %q in %s", text, a.body)
	}
	return a
}
