package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// put sends a PUT request, and returns the status.
func put(t *testing.T, url, body string, headers ...string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if request.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	reply, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	return reply.StatusCode
}

// becomes waits until a GET request gets this status and text.
func becomes(t *testing.T, url string, code int, says string) {
	t.Helper()
	redistest.Eventually(t, patience, func() (bool, string) {
		got, text := get(t, url)
		return got == code && strings.Contains(text, says), text
	})
}

// /readyz names the queue that is late. /healthz does not ask to restart a bridge for that, nor for a Redis that is
// down. `health --ready` says the same as /readyz.
func TestProbesTellAliveFromReady(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	server := redistest.Own(t)
	c := newCLIOn(t, server)
	c.do("XADD", c.key("bad", "stream"), "18446744073709551615-18446744073709551615", "no", "more") // last ID
	c.do("ZADD", c.key("bad", "due"), c.ms(-time.Minute), "a")
	c.do("HSET", lua.NewGlobals(c.prefix).Queues, "bad", "1", "q", "1")
	bridge := c.start("serve", "--metrics", "127.0.0.1:0")
	worker := c.start("work", "q", "--group", "g", "--metrics", "127.0.0.1:0", "--", "true")
	at, workerAt := "http://"+bridge.address(), "http://"+worker.address()
	becomes(t, workerAt+"/readyz", http.StatusOK, "ok\n")
	becomes(t, at+"/readyz", http.StatusServiceUnavailable, "bad (late by 1m")
	becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	c.do("DEL", c.key("bad", "stream"))
	c.do("SET", c.key("bad", "stream"), "of another program") // no bridge can serve it: not the bridge's fault
	becomes(t, at+"/readyz", http.StatusOK, "ok\nbad (")
	t.Setenv("DUESTREAM_METRICS_ADDR", bridge.address())
	if out := c.ok("health", "--ready"); !strings.HasPrefix(out, "ready\nbad (") {
		t.Error(out)
	}
	c.do("DEL", c.key("bad", "stream"))
	c.do("XADD", c.key("bad", "stream"), "18446744073709551615-18446744073709551615", "no", "more")
	c.do("ZADD", c.key("bad", "due"), c.ms(-time.Minute), "a")
	becomes(t, at+"/readyz", http.StatusServiceUnavailable, "bad (late by 1m")
	t.Setenv("DUESTREAM_METRICS_ADDR", worker.address())
	if out := c.ok("health", "--ready"); out != "ready\n" {
		t.Error(out)
	}
	t.Setenv("DUESTREAM_METRICS_ADDR", bridge.address())
	c.fails(exitFailure, []string{"not ready: bad (late by 1m"}, "health", "--ready")

	server.Stop()
	becomes(t, workerAt+"/readyz", http.StatusServiceUnavailable, "q: the worker is failing")
	becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	becomes(t, workerAt+"/healthz", http.StatusOK, "ok\n")
	for _, r := range []*running{bridge, worker} {
		r.stop()
		if code := r.wait(); code != exitOK {
			t.Errorf("exit code %d\n%s", code, r.err)
		}
	}
	c.fails(exitFailure, []string{"nobody answers at DUESTREAM_METRICS_ADDR"}, "health", "--ready")
	t.Setenv("DUESTREAM_METRICS_ADDR", "127.0.0.1:0")
	c.fails(exitInvalid, []string{"--ready needs DUESTREAM_METRICS_ADDR"}, "health", "--ready")
}

// The log level changes at run time, to one of four words. Profiles are served only with --pprof.
func TestLogLevelChangesAtRunTimeAndProfilesAreAsked(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	c := &cli{t: t, url: unreachable}
	bridge := c.start("serve", "--metrics", "127.0.0.1:0")
	at := "http://" + bridge.address()
	becomes(t, at+"/loglevel", http.StatusOK, "info\n")
	for body, want := range map[string]int{"loud": http.StatusBadRequest, "": http.StatusBadRequest,
		strings.Repeat("d", 1000): http.StatusBadRequest, "info+3": http.StatusBadRequest} {
		if code := put(t, at+"/loglevel", body); code != want {
			t.Errorf("%.10q: %d", body, code)
		}
	}
	// Web pages: of another host, by DNS rebinding, from a file, of this very address.
	for _, page := range [][]string{{"Origin", "http://evil.example"},
		{"Origin", "http://evil.example:9090", "Host", "evil.example:9090"}, {"Origin", "null"}, {"Origin", at},
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-origin"}} {
		if code := put(t, at+"/loglevel", "debug", page...); code != http.StatusForbidden {
			t.Fatalf("%v: %d", page, code)
		}
	}
	becomes(t, at+"/loglevel", http.StatusOK, "info\n")
	if code := put(t, at+"/loglevel", " ERROR\n", "Host", "bridge-1:9090"); code != http.StatusOK {
		t.Error(code)
	}
	becomes(t, at+"/loglevel", http.StatusOK, "error\n")
	bridge.says(`"msg":"log level changed","before":"info","now":"error"`)
	if code, _ := get(t, at+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles that nobody asked for: %d", code)
	}
	becomes(t, at+"/readyz", http.StatusServiceUnavailable, "waits for Redis")

	profiled := c.start("serve", "--metrics", "127.0.0.1:0", "--pprof")
	at = "http://" + profiled.address()
	becomes(t, at+"/debug/pprof/goroutine?debug=1", http.StatusOK, "goroutine profile")
	if code, _ := get(t, at+"/debug/pprof/cmdline"); code != http.StatusNotFound { // the URL of Redis may hold a password
		t.Errorf("the command line: %d", code)
	}
	becomes(t, at+"/debug/pprof/trace?seconds=0.05", http.StatusOK, "")
}
