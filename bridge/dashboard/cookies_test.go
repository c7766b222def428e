package dashboard

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// A cookie that another application has planted must neither log a viewer out nor make them act with another token. A
// cookie with a prefix counts more, because a browser refuses planted ones. Over TLS a cookie without one is foreign.
func TestAPlantedCookieDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret := func(name string) string {
		return redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: name, Verbs: inspect, Queues: []string{"*"}}))
	}
	login := func(secret string) string { return sessionValue(secret, time.Now()) }
	own, other, bad := login(secret("own")), login(secret("other")), login(access.SecretPrefix+strings.Repeat("a", 43))
	for _, c := range []struct {
		host, secure, plain []string
		tls                 bool
		want                string
	}{
		{plain: []string{own}, want: "own"}, {plain: []string{bad, own}, want: "own"},
		{plain: []string{own, bad}, want: "own"}, {plain: []string{own, own}, want: "own"},
		{plain: []string{own, other}}, {plain: []string{bad}}, {}, {plain: []string{bad, bad, bad, bad, own}},
		{plain: []string{"a", "b", "c", "d", "1.x", own}, want: "own"},
		{secure: []string{own}, plain: []string{other}, want: "own"}, {secure: []string{own, other}},
		{host: []string{own}, secure: []string{other, other}, plain: []string{other}, tls: true, want: "own"},
		{plain: []string{other}, tls: true}, {secure: []string{own}, tls: true, want: "own"},
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		if c.tls {
			req.Header.Set("X-Forwarded-Proto", "https")
		}
		for i, values := range [][]string{c.host, c.secure, c.plain} {
			for _, value := range values {
				req.AddCookie(&http.Cookie{Name: sessionNames[i], Value: value})
			}
		}
		g, err := r.dashboard.grant(req)
		if c.want == "" && !errors.Is(err, errLogin) || c.want != "" && (err != nil || g.Name() != c.want) {
			t.Errorf("%+v: %v, %v; want %q", c, g, err, c.want)
		}
	}
}

// The server must refuse a login that is older than 12 hours, also if a browser or a copy kept its cookie.
func TestALoginEndsAfterTwelveHours(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret := redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: "a", Verbs: inspect, Queues: []string{"*"}}))
	for value, want := range map[string]bool{
		sessionValue(secret, time.Now()):                                true,
		sessionValue(secret, time.Now().Add(time.Minute-sessionLength)): true,
		sessionValue(secret, time.Now().Add(-sessionLength)):            false,
		sessionValue(secret, time.Now().Add(time.Minute)):               true, // by the clock of another process
		sessionValue(secret, time.Now().Add(2*sessionLength)):           false,
		secret:        false,
		"." + secret:  false,
		"x." + secret: false,
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		_, err := r.dashboard.grant(req)
		if (err == nil) != want || err != nil && !errors.Is(err, errLogin) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// Over TLS the cookie must have a name that a browser protects. All cookies must be limited to TLS by one rule.
func TestTheNameOfALoginCookie(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ origin, proto, referer, name, path string }{
		{"", "", "", sessionCookie, ""},
		{"http://localhost:7778", "", "http://localhost:7778/login", sessionCookie, ""},
		{"https://a.example", "", "", securePrefix + sessionCookie, ""},
		{"", "https", "", securePrefix + sessionCookie, ""},
		{"https://a.example", "https", "https://a.example/ops/login", securePrefix + sessionCookie, ""},
		{"https://a.example", "", "https://a.example/login?next=queue", hostPrefix + sessionCookie, "/"},
		{"https://a.example", "https", "https://a.example/", securePrefix + sessionCookie, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		for name, value := range map[string]string{"Origin": c.origin, "X-Forwarded-Proto": c.proto, "Referer": c.referer} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		got := newSession(r, "s")
		redistest.Want(t, fmt.Sprintf("name and path with %+v", c), got.Name+" "+got.Path, c.name+" "+c.path)
		isSecure := c.name != sessionCookie
		redistest.Want(t, fmt.Sprintf("secure with %+v", c), got.Secure, isSecure)
		redistest.Want(t, fmt.Sprintf("other cookie, secure with %+v", c), newCookie(r, noticeCookie, "", 1).Secure, isSecure)
		if err := got.Valid(); err != nil {
			t.Error(err)
		}
	}
}

// secureViewer returns a browser that is not logged in, and opens https://queues.example.test/ops/queues/. The proxy in
// front of the dashboard is on this machine.
func (r *rig) secureViewer() *viewer {
	r.T.Helper()
	handler := http.StripPrefix("/ops/queues", r.dashboard)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			req.Header.Set("Referer", "https://queues.example.test/ops/queues/login")
		}
		handler.ServeHTTP(w, req)
	}))
	r.T.Cleanup(server.Close)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the server of this test
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		},
	}
	jar := redistest.Must(cookiejar.New(nil))
	return &viewer{t: r.T, base: "https://queues.example.test/ops/queues/",
		http: &http.Client{Jar: jar, Transport: transport}}
}

// A viewer must get out of a lock-out by a login: cookies that another host of the domain has planted are deleted.
// Regression: a cookie of another token kept the viewer out until they deleted the cookies of the browser.
func TestALoginDeletesPlantedCookies(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret := func(name string) string {
		return redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: name, Verbs: inspect, Queues: []string{"*"}}))
	}
	own, foreign := secret("own"), secret("foreign")
	plants := map[string][]*http.Cookie{"one of another token": {
		{Domain: "example.test", Path: "/ops/queues/", Value: sessionValue(foreign, time.Now())},
	}}
	for i, path := range []string{"/", "/ops", "/ops/", "/ops/queues", "/ops/queues/"} {
		domain := []string{"example.test", "queues.example.test"}[i%2]
		plants["bad ones"] = append(plants["bad ones"], &http.Cookie{Domain: domain, Path: path,
			Value: sessionValue(access.SecretPrefix+strings.Repeat("a", 43), time.Now())})
	}
	for name, planted := range plants {
		v := r.secureViewer()
		login := url.Values{"token": {own}}
		if status, text := v.post("login", login); status != http.StatusOK || !strings.Contains(text, "own") {
			t.Fatalf("login: %d\n%s", status, text)
		}
		for _, c := range planted {
			c.Name, c.Secure = securePrefix+sessionCookie, true
		}
		address := redistest.Must(url.Parse(v.base))
		v.http.Jar.SetCookies(address, planted)
		_, text := v.get("")
		redistest.Want(t, "logged out by "+name, strings.Contains(text, `id="login"`), true)
		status, text := v.post("login", login)
		redistest.Want(t, "status of the login after "+name, status, http.StatusOK)
		contains(t, text, "own")
		lacks(t, text, `id="login"`)
		redistest.Want(t, "cookies after "+name, len(v.http.Jar.Cookies(address)), 1)
		v.post("logout", nil)
		redistest.Want(t, "cookies after the logout", len(v.http.Jar.Cookies(address)), 0)
	}
}

// A cookie with the path of a page must not keep a viewer out of the page for good. The login does not get it.
func TestALoginDeletesCookiesOfItsPage(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	secret := func(name string) string {
		return redistest.Must(r.op.AddToken(t.Context(), access.Token{Name: name, Verbs: inspect, Queues: []string{"*"}}))
	}
	own, foreign := secret("own"), secret("foreign")
	v := r.secureViewer()
	v.post("login", url.Values{"token": {own}})
	address := redistest.Must(url.Parse(v.base))
	v.http.Jar.SetCookies(address, []*http.Cookie{{Name: securePrefix + sessionCookie, Secure: true,
		Domain: "example.test", Path: "/ops/queues/servers", Value: sessionValue(foreign, time.Now())}})
	_, text := v.get("servers")
	redistest.Want(t, "logged out of the page", strings.Contains(text, `id="login"`), true)
	_, text = v.post("login", url.Values{"token": {own}, "next": {"servers?a=b"}})
	contains(t, text, "own")
	lacks(t, text, `id="login"`)
	redistest.Want(t, "cookies of the page", len(v.http.Jar.Cookies(address.JoinPath("servers"))), 1)
}

// The deletion of planted cookies must name each domain and path that a browser sends, and few others.
func TestDomainsAndPathsOfPlantedCookies(t *testing.T) {
	t.Parallel()
	for host, want := range map[string][]string{
		"a.b.example.com:443": {"a.b.example.com", "b.example.com", "example.com"}, "localhost": nil, "127.0.0.1:7": nil,
		"[::1]:7": nil, "::1": nil, "": nil,
	} {
		redistest.Want(t, "domains of "+host, fmt.Sprint(domainsOf(host)), fmt.Sprint(want))
	}
	for page, want := range map[string][]string{
		"": nil, "/login": {"/"}, "/a/b/login": {"/", "/a", "/a/", "/a/b", "/a/b/"},
	} {
		redistest.Want(t, "paths of "+page, fmt.Sprint(pathsTo(page)), fmt.Sprint(want))
	}
	long := strings.Repeat("a.", 1000)
	redistest.Want(t, "domains of a long name", len(domainsOf(long)), mostPlanted)
	redistest.Want(t, "paths of a long address", len(pathsTo(strings.ReplaceAll(long, ".", "/"))), mostPlanted)
}

// A cookie of another host must not make the dashboard tell a viewer something.
func TestAPlantedNoticeIsNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	v := r.viewer(access.Verbs(), "*")
	text := "Log in at evil.example."
	encoded := base64.RawURLEncoding.EncodeToString([]byte(text))
	address := redistest.Must(url.Parse(v.base))
	for _, value := range []string{encoded, noticeCode("another secret", text) + encoded, ""} {
		v.http.Jar.SetCookies(address, []*http.Cookie{{Name: noticeCookie, Value: value}})
		_, page := v.get("search")
		lacks(t, page, "evil")
		if slices.ContainsFunc(v.http.Jar.Cookies(address), func(c *http.Cookie) bool { return c.Name == noticeCookie }) {
			t.Error("the notice is kept")
		}
	}
	_, page := v.post("do-queue-create", url.Values{"queue": {r.Queue}, "id": {"a"}, "payload": {"a"}})
	contains(t, page, "Message a is ready.")
}
