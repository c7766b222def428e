package lmstfy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/lmstfy"
	"github.com/duestream/duestream/integration/redistest"
)

// operators is a rig with an admin listener.
type operators struct {
	*rig
	base string // URL of the admin listener, without a path
}

func newOperators(t *testing.T) *operators {
	t.Helper()
	r := newRig(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := httptest.NewServer(redistest.Must(lmstfy.NewAdmin(r.op, "v1.2.3", log)))
	t.Cleanup(s.Close)
	return &operators{rig: r, base: s.URL}
}

// ask sends a request to the admin listener. A body with a = is a form.
func (o *operators) ask(method, path, body string) (status int, text string) {
	o.t.Helper()
	req, err := http.NewRequestWithContext(o.t.Context(), method, o.base+path, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	if strings.Contains(body, "=") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// want sends a request to the admin listener and compares the answer. A * in the text matches anything. want returns
// the text that the last * stands for.
func (o *operators) want(status int, text, method, path, body string) string {
	o.t.Helper()
	gotStatus, got := o.ask(method, path, body)
	pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, "(.*)") + "$"
	found := regexp.MustCompile(pattern).FindStringSubmatch(got)
	if gotStatus != status || found == nil {
		o.t.Errorf("%s %s %s: %d %q, want %d %q", method, path, body, gotStatus, got, status, text)
		return ""
	}
	return found[len(found)-1]
}

// status sends a request to lmstfy's API with a token, and returns the status.
func (o *operators) status(token, method, path string) int {
	return o.do(method, path, "x", "X-Token: "+token).status
}

// A token that the admin listener makes is a token of duestream for its namespace. It works at once, and stops
// working when it is removed.
func TestTokensOfTheAdminListener(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	secret := o.want(201, "{\n    \"token\": \"*\"\n}", "POST", "/token/shop?description=the+shop", "")
	redistest.Want(t, "made for", o.status(secret, "PUT", "/api/shop/q"), 201)
	redistest.Want(t, "another namespace", o.status(secret, "PUT", "/api/ns/q"), 401)
	o.want(201, "{\n    \"token\": \"default:zzzdefghij0123456789\"\n}", "POST", "/token/shop?pool=default",
		"description=mine&token=zzzdefghij0123456789")
	redistest.Want(t, "a chosen one", o.status("default:zzzdefghij0123456789", "PUT", "/api/shop/q"), 201)
	o.want(400, `{"error":"the token has already existed"}`, "POST", "/token/shop", "description=x&token=zzzdefghij0123456789")

	all, err := o.op.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, token := range all {
		names[token.Description] = token.Name
		if strings.Contains(fmt.Sprintf("%+v", token), secret) {
			t.Error("a secret is stored")
		}
	}
	rows := []string{fmt.Sprintf("        %q: \"the shop\"", names["the shop"]),
		fmt.Sprintf("        %q: \"mine\"", names["mine"])}
	slices.Sort(rows)
	o.want(200, "{\n    \"tokens\": {\n"+strings.Join(rows, ",\n")+"\n    }\n}", "GET", "/token/shop", "")
	o.want(200, "{\n    \"tokens\": {}\n}", "GET", "/token/other", "")

	o.want(204, "", "DELETE", "/token/ns/"+secret, "")   // of another namespace
	o.want(204, "", "DELETE", "/token/ns/"+o.token, "")  // by its secret
	o.want(204, "", "DELETE", "/token/shop/unknown", "") // unknown
	left, err := o.op.Tokens(t.Context())                // read from Redis, because gateways notice a removal later
	redistest.Want(t, "tokens left", fmt.Sprint(len(left), err), fmt.Sprint(len(all)-1, nil))
	o.want(204, "", "DELETE", "/token/shop/default:zzzdefghij0123456789", "")
	o.want(204, "", "DELETE", "/token/shop/"+names["the shop"], "")
	for _, gone := range []string{secret, "zzzdefghij0123456789", o.token} {
		redistest.Eventually(t, 10*access.FreshFor, func() (bool, string) {
			return o.status(gone, "PUT", "/api/shop/q") == 401, "a token works that was removed"
		})
	}
}

// The limits of a token count publishing and consuming separately, over all gateways.
func TestLimitsOfTheAdminListener(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	secret := o.want(201, "{\n    \"token\": \"*\"\n}", "POST", "/token/shop", "description=limited")
	at := "/token/shop/" + secret + "/limit"
	o.want(404, "null", "GET", at, "")
	o.want(400, `{"limiter":{"read":0,"write":0,"interval":4}}`, "POST", at, `{"read":0,"write":0,"interval":4}`)
	o.want(400, `{"error":"interval should be \u003e 0"}`, "POST", at, `{"read":1}`)
	o.want(400, `{"error":"*"}`, "PUT", at, `{"read":-1,"write":3,"interval":4}`)
	o.want(400, `{"error":"*"}`, "PUT", at, `{"read":1,"write":3,"interval":86401}`)
	o.want(400, `{"error":"*"}`, "PUT", at, `{"read":1`)
	o.want(404, `{"error":"token not found"}`, "PUT", "/token/ns/"+secret+"/limit", `{"read":2,"write":3,"interval":4}`)
	o.want(404, "null", "GET", at, "")
	const limiter = `{"read":2,"write":3,"interval":86400}`
	o.want(201, `{"limiter":`+limiter+`}`, "POST", at, limiter)
	o.want(500, `{"error":"throttler token(*) has already exists"}`, "POST", at, limiter)
	o.want(200, limiter, "GET", at, "")
	o.want(200, `[{"namespace":"shop","token":"lmstfy.shop.*","limiter":`+limiter+`}]`, "GET", "/limits?force_update=true", "")
	// Until the gateway knows the limits and they are used up.
	redistest.Eventually(t, 10*access.FreshFor, func() (bool, string) {
		return o.status(secret, "PUT", "/api/shop/q") == 429, "more is published than the limit allows"
	})
	redistest.Want(t, "consumed", o.status(secret, "GET", "/api/shop/q"), 200)
	redistest.Want(t, "consumed", o.status(secret, "GET", "/api/shop/q"), 200)
	redistest.Want(t, "consumed too much", o.status(secret, "GET", "/api/shop/q"), 429)
	redistest.Want(t, "not consumed", o.status(secret, "GET", "/api/shop/q/peek"), 200)
	o.want(200, `{"limiter":{"read":0,"write":3,"interval":86400}}`, "PUT", at, `{"read":0,"write":3,"interval":86400}`)
	redistest.Eventually(t, 10*access.FreshFor, func() (bool, string) {
		return o.status(secret, "GET", "/api/shop/q") == 200, "the former limit on consuming still holds"
	})
	for range 2 {
		o.want(200, `{"msg":"success"}`, "DELETE", at, "")
	}
	redistest.Eventually(t, 10*access.FreshFor, func() (bool, string) {
		return o.status(secret, "PUT", "/api/shop/q") == 201, "the deleted limit on publishing still holds"
	})
	o.want(200, "[]", "GET", "/limits", "")
}

// The admin listener lists pools and queues, and tells its version. Its errors are those of lmstfy's server, and a
// request that is refused makes no token.
func TestWhatElseTheAdminListenerTells(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	o.want(200, "[\n    \"default\"\n]", "GET", "/pools", "")
	o.want(200, "{\n    \"build_commit\": \"\",\n    \"build_date\": \"\",\n    \"version\": \"v1.2.3\"\n}", "GET", "/version", "")
	redistest.Want(t, "published", o.status(o.token, "PUT", "/api/ns/q"), 201)
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		_, text := o.ask("GET", "/info", "")
		return text == "{\n    \"ns\": [\n        \"q\"\n    ]\n}\n", text
	})
	o.want(200, "", "GET", "/info?pool=other", "")

	before, err := o.op.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status                   int
		text, method, path, body string
	}{
		{400, `{"error":"invalid description"}`, "POST", "/token/shop", ""},
		{400, `{"error":"the user token was too short"}`, "POST", "/token/shop", "description=x&token=short"},
		{400, `{"error":"secret *"}`, "POST", "/token/shop", "description=x&token=not+one+that+can+be+taken"},
		{400, `{"error":"secret *"}`, "POST", "/token/shop", "description=x&token=" + strings.Repeat("t", 10_000)},
		{400, `{"error":"description *"}`, "POST", "/token/shop", "description=a%00b"},
		{400, `{"error":"the pool was not exists"}`, "POST", "/token/shop?pool=p2", "description=x"},
		{400, `{"error":"the pool was not exists"}`, "POST", "/token/shop", "description=x&token=p2:zzzdefghij0123456789"},
		{400, `{"error":"the pool was not exists"}`, "GET", "/token/shop?pool=p2", ""},
		{400, `{"error":"the pool was not exists"}`, "DELETE", "/token/shop/p2:x", ""},
		{400, `{"error":"namespace name contains forbidden characters"}`, "POST", "/token/sh%2fop", "description=x"},
		{400, `{"error":"namespace name contains forbidden characters"}`, "POST", "/token/%7Bshop%7D", "description=x"},
		{400, `{"error":"namespace name contains forbidden characters"}`, "POST", "/token/%00", "description=x"},
		{400, `{"error":"namespace name contains forbidden characters"}`, "POST", "/token/*", "description=x"},
		{400, `{"error":"the namespace name was too long"}`, "POST", "/token/" + strings.Repeat("n", 10_000),
			"description=x"},
		{404, "404 page not found\n", "GET", "/", ""},
		{404, "404 page not found\n", "POST", "/token/shop/x/y/z", "description=x"},
		{405, "Method Not Allowed\n", "PUT", "/token/shop", "description=x"},
		{400, `{"error":"invalid description"}`, "POST", "/token/shop", "x=" + strings.Repeat("x", 1<<20)},
		{400, `{"error":"*"}`, "PUT", "/token/shop/x/limit", `{"read":` + strings.Repeat("1", 1<<20) + "}"},
	} {
		o.want(c.status, c.text, c.method, c.path, c.body)
	}
	after, err := o.op.Tokens(t.Context())
	redistest.Want(t, "tokens", fmt.Sprint(len(after), err), fmt.Sprint(len(before), nil))
}

// Tokens are found by the names that the list shows. Such a name may begin with the name of a pool and a colon, as
// default:b: then the token of that whole name comes first, and after it the token b. Forms may be URL-encoded or
// multipart.
func TestTokensAreFoundAsTheyAreListed(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	for _, name := range []string{"a:b", "default:b", "b", "p2:b"} {
		o.allow(name, access.Verbs(), "shop:*")
	}
	for i, name := range []string{"a:b", "default:b", "p2:b", "b"} {
		limiter := fmt.Sprintf(`{"read":%d,"write":0,"interval":1}`, i+1)
		o.want(200, `{"limiter":`+limiter+`}`, "PUT", "/token/shop/"+name+"/limit", limiter)
		o.want(200, limiter, "GET", "/token/shop/"+name+"/limit", "")
	}
	o.want(400, `{"error":"the pool was not exists"}`, "GET", "/token/shop/q:b/limit", "")
	o.want(204, "", "DELETE", "/token/shop/default:b", "")
	// This limiter is that of b, because default:b is gone.
	o.want(200, `{"read":4,"write":0,"interval":1}`, "GET", "/token/shop/default:b/limit", "")
	o.want(204, "", "DELETE", "/token/shop/default:b", "")
	o.want(404, "null", "GET", "/token/shop/b/limit", "")

	var form strings.Builder
	parts := multipart.NewWriter(&form)
	if err := errors.Join(parts.WriteField("description", "in parts"), parts.Close()); err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "POST", o.base+"/token/parts", strings.NewReader(form.String()))
	req.Header.Set("Content-Type", parts.FormDataContentType())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	redistest.Want(t, "made", res.StatusCode, 201)
	o.want(200, "{\n    \"tokens\": {\n        \"*\": \"in parts\"\n    }\n}", "GET", "/token/parts", "")
}

// Requests that wait for a hung Redis leave room for health checks on the same address.
func TestOperatorsAreAnsweredSoManyAtATime(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := server.Proxy(t)
	redis, err := bridge.Dial(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	var said strings.Builder // the log
	op := redistest.Must(admin.New(redis, server.Prefix(t)))
	h := redistest.Must(lmstfy.NewAdmin(op, "v1", slog.New(slog.NewTextHandler(&said, nil))))
	proxy.Stall(true)
	answers := make(chan int, 17)
	ctx, cancel := context.WithCancel(t.Context())
	for range 17 {
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/limits", nil).WithContext(ctx))
			answers <- w.Code
		}()
	}
	redistest.Want(t, "the 17th request is refused at once", <-answers, 503)
	cancel()
	for range 16 {
		redistest.Want(t, "the others end when they are cancelled", <-answers, 503)
	}
	redistest.Want(t, "log", said.String(), "")
}

// A long namespace can have tokens: their names are shortened to the limit.
func TestTokensOfALongNamespace(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	long := strings.Repeat("n", 125)
	for range 2 {
		o.want(201, "{\n    \"token\": \"*\"\n}", "POST", "/token/"+long, "description=x")
	}
	all, err := o.op.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range all {
		redistest.Want(t, "name", admin.CheckToken(token.Name), nil)
	}
}
