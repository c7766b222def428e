package dashboard

import (
	"bufio"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
)

// No request target may make the dashboard send a browser to another site, or show a page without a login. It holds
// with and without a proxy that strips the path.
func TestNoTargetLeadsElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	mux := http.NewServeMux()
	mux.Handle("/ops/queues/", http.StripPrefix("/ops/queues", r.dashboard))
	own := httptest.NewServer(mux)
	t.Cleanup(own.Close)
	bare := httptest.NewServer(r.dashboard)
	t.Cleanup(bare.Close)
	proxied := func(to string, strip string) *httptest.Server {
		target := redistest.Must(url.Parse(to))
		s := httptest.NewServer(http.StripPrefix(strip, httputil.NewSingleHostReverseProxy(target)))
		t.Cleanup(s.Close)
		return s
	}
	servers := map[string]string{"mux": own.URL, "bare": bare.URL, "strip": r.server.URL,
		"proxy": proxied(own.URL, "").URL, "proxy that strips": proxied(bare.URL, "/ops/queues").URL}
	targets := []string{
		"/ops/queues", "/ops/queues/", "/ops/queues//", "//evil.example/ops/queues", "/ops/queues//evil.example",
		"/ops/queues/%2e%2e", "/ops/queues/%2e%2e/%2e%2e/", "/ops/queues%2f", "/ops/queues/%2f%2fevil.example",
		"/ops/queues;x", "/ops/queues/;x", `/ops/queues/\evil.example`, `/ops/queues\evil.example`,
		"/ops/queues/./queue", "/ops/queues/queue/", "http://evil.example/ops/queues", "http://evil.example",
		"http://evil.example/ops/queues/", "http://evil.example//x/", "/ops/queues/assets/../",
		"/ops/queues/assets/%2e%2e/queue", "/ops/queues/?x=%0d%0aSet-Cookie:a=b",
		"/ops/queues/%0d%0aSet-Cookie:a=b", "/ops/queues/queue?queue=%0d%0aLocation:x", "*", "/", "//",
		"/ops/../ops/queues/", "/ops/queues/login?next=//evil.example",
		"/ops/queues/login?next=https://evil.example", "/ops/queues/login?next=%5C%5Cevil",
	}
	for name, server := range servers {
		host := strings.TrimPrefix(server, "http://")
		for _, target := range targets {
			conn, err := net.Dial("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: evil.example\r\n"+
				"X-Forwarded-Proto: https\r\nX-Forwarded-Prefix: //evil.example\r\nConnection: close\r\n\r\n", target)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			_ = conn.Close()
			if err != nil {
				t.Errorf("%s %s: %v", name, target, err)
				continue
			}
			location := res.Header.Get("Location")
			base := redistest.Must(url.Parse("https://own.example" + "/ops/queues/"))
			to, err := base.Parse(location)
			if err != nil || location != "" && to.Host != "own.example" || strings.HasPrefix(location, `\`) {
				t.Errorf("%s %s leads to %q", name, target, location)
			}
			if len(res.Cookies()) > 0 || res.StatusCode >= http.StatusInternalServerError {
				t.Errorf("%s %s: status %d, cookies %v", name, target, res.StatusCode, res.Cookies())
			}
		}
	}
}

// Every page, action and stream must answer names of queues that are given twice, empty, or under another name, and
// never show a queue that the token may not see.
func TestNoFormOfAQueueNameShowsAForeignQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t), nil)
	for _, queue := range []string{"mine", "foreign"} {
		if err := r.op.Register(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
	}
	v := r.viewer(access.Verbs(), "mine")
	queries := []string{"queue=", "queue=&queue=foreign", "queue=mine&queue=foreign", "queues=foreign", "queues=*",
		"queue=mine&queues=foreign+mine", "queue=mine%20foreign", "queue=FOREIGN", "queue=*", "queue=mine%00foreign",
		"QUEUE=foreign"}
	paths := []string{"search-stream", "payload", "message-json"}
	for _, p := range pages {
		paths = append(paths, p.path)
	}
	for _, query := range queries {
		for _, path := range paths {
			address := path + "?id=x&name=x&letter=1-1&q=x&edit=x&" + query
			status, text := v.get(address)
			text = strings.ReplaceAll(text, html.EscapeString(query), "") // the page holds its own address
			for _, shown := range []string{">foreign<", `queue=foreign"`, `"queue-foreign"`, `value="foreign"></option>`} {
				if strings.Contains(text, shown) && status < 400 {
					t.Errorf("%s: %d shows %s", address, status, shown)
				}
			}
			if status >= http.StatusInternalServerError {
				t.Errorf("%s: status %d\n%.300s", address, status, text)
			}
		}
		for _, a := range actions {
			form := redistest.Must(url.ParseQuery(query))
			form.Set("id", "x")
			status, _ := v.post(a.path, form)
			if status >= http.StatusInternalServerError {
				t.Errorf("%s with %s: status %d", a.path, query, status)
			}
		}
	}
	left := redistest.Must(r.op.Queues(t.Context()))
	if !strings.Contains(strings.Join(left, " "), "foreign") {
		t.Errorf("the foreign queue is gone: %v", left)
	}
	for _, page := range pages {
		if page.live == nil {
			continue
		}
		for _, query := range []string{"queue=", "id=x", "queue=&queue=foreign", "queue=mine&queue=foreign"} {
			status, text := v.firstUpdate("live-" + page.template + "?" + query)
			if strings.Contains(strings.ReplaceAll(text, "queue=foreign", ""), "foreign") {
				t.Errorf("the stream of %s?%s: %s", page.template, query, text)
			}
			if strings.Contains(text, "event: away") {
				t.Errorf("the stream of %s?%s has only an error: %d %s", page.template, query, status, text)
			}
		}
	}
}

// firstUpdate returns the status and the beginning of a stream, up to the end of its first update.
func (v *viewer) firstUpdate(page string) (status int, text string) {
	v.t.Helper()
	res, err := v.http.Get(v.base + page)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for isEvent := false; ; {
		line, err := lines.ReadString('\n')
		text += line
		isEvent = isEvent || strings.HasPrefix(line, "event:")
		if err != nil || isEvent && line == "\n" {
			return res.StatusCode, text
		}
	}
}
