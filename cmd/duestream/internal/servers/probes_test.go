package servers_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// /readyz names the queue that is late. /healthz does not ask to restart a bridge for that, nor for a Redis that is
// down. `health --ready` says the same as /readyz.
func TestProbesTellAliveFromReady(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	server := redistest.Own(t)
	c := clitest.NewOn(t, server)
	// lastID is the largest ID of an entry. A stream that has it takes no further entry, so no message becomes ready.
	const lastID = "18446744073709551615-18446744073709551615"
	c.Do("XADD", c.Key("bad", "stream"), lastID, "no", "more")
	c.Do("ZADD", c.Key("bad", "due"), c.Milliseconds(-time.Minute), "a")
	c.Do("HSET", lua.NewGlobals(c.Prefix).Queues, "bad", "1", "q", "1")
	bridge := c.Start("serve", "--metrics", "127.0.0.1:0")
	worker := c.Start("work", "q", "--group", "g", "--metrics", "127.0.0.1:0", "--", "true")
	at, workerAt := "http://"+bridge.Address(), "http://"+worker.Address()
	clitest.Becomes(t, workerAt+"/readyz", http.StatusOK, "ok\n")
	clitest.Becomes(t, at+"/readyz", http.StatusServiceUnavailable, "bad (late by 1m")
	clitest.Becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	// A key that another program has overwritten: no bridge could serve the queue, so this one is ready. The key must not
	// be missing for a moment: the bridge would make the message ready.
	c.Do("SET", c.Key("bad", "stream"), "of another program")
	clitest.Becomes(t, at+"/readyz", http.StatusOK, "ok\nbad (")
	t.Setenv("DUESTREAM_METRICS_ADDR", bridge.Address())
	if out := c.OK("health", "--ready"); !strings.HasPrefix(out, "ready\nbad (") {
		t.Error(out)
	}
	c.Do("DEL", c.Key("bad", "stream"))
	c.Do("XADD", c.Key("bad", "stream"), lastID, "no", "more")
	c.Do("ZADD", c.Key("bad", "due"), c.Milliseconds(-time.Minute), "a")
	clitest.Becomes(t, at+"/readyz", http.StatusServiceUnavailable, "bad (late by 1m")
	t.Setenv("DUESTREAM_METRICS_ADDR", worker.Address())
	if out := c.OK("health", "--ready"); out != "ready\n" {
		t.Error(out)
	}
	t.Setenv("DUESTREAM_METRICS_ADDR", bridge.Address())
	c.Fails(exit.Failure, []string{"not ready: bad (late by 1m"}, "health", "--ready")

	server.Stop()
	clitest.Becomes(t, workerAt+"/readyz", http.StatusServiceUnavailable, "q: the worker is failing")
	clitest.Becomes(t, at+"/healthz", http.StatusOK, "ok\n")
	clitest.Becomes(t, workerAt+"/healthz", http.StatusOK, "ok\n")
	for _, r := range []*clitest.Running{bridge, worker} {
		r.Stop()
		if code := r.Wait(); code != exit.OK {
			t.Errorf("exit code %d\n%s", code, r.Err)
		}
	}
	c.Fails(exit.Failure, []string{"nobody answers at DUESTREAM_METRICS_ADDR"}, "health", "--ready")
	t.Setenv("DUESTREAM_METRICS_ADDR", "127.0.0.1:0")
	c.Fails(exit.Invalid, []string{"--ready needs DUESTREAM_METRICS_ADDR"}, "health", "--ready")
}

// The log level changes at run time, to one of four words, and not by a web page. Profiles are served only with
// --pprof.
func TestLogLevelChangesAtRunTimeAndProfilesAreAsked(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	bridge := c.Start("serve", "--metrics", "127.0.0.1:0")
	at := "http://" + bridge.Address()
	clitest.Becomes(t, at+"/loglevel", http.StatusOK, "info\n")
	for body, want := range map[string]int{"loud": http.StatusBadRequest, "": http.StatusBadRequest,
		strings.Repeat("d", 1000): http.StatusBadRequest, "info+3": http.StatusBadRequest} {
		if code := clitest.Put(t, at+"/loglevel", body); code != want {
			t.Errorf("%.10q: %d", body, code)
		}
	}
	// Web pages: of another host, by DNS rebinding, from a file, of this very address.
	for _, page := range [][]string{{"Origin", "http://evil.example"},
		{"Origin", "http://evil.example:9090", "Host", "evil.example:9090"}, {"Origin", "null"}, {"Origin", at},
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-origin"}} {
		if code := clitest.Put(t, at+"/loglevel", "debug", page...); code != http.StatusForbidden {
			t.Fatalf("%v: %d", page, code)
		}
	}
	clitest.Becomes(t, at+"/loglevel", http.StatusOK, "info\n")
	if code := clitest.Put(t, at+"/loglevel", " ERROR\n", "Host", "bridge-1:9090"); code != http.StatusOK {
		t.Error(code)
	}
	clitest.Becomes(t, at+"/loglevel", http.StatusOK, "error\n")
	bridge.Says(`"msg":"log level changed","before":"info","now":"error"`)
	if code, _ := clitest.Get(t, at+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles that nobody asked for: %d", code)
	}
	clitest.Becomes(t, at+"/readyz", http.StatusServiceUnavailable, "waits for Redis")

	profiled := c.Start("serve", "--metrics", "127.0.0.1:0", "--pprof")
	at = "http://" + profiled.Address()
	clitest.Becomes(t, at+"/debug/pprof/goroutine?debug=1", http.StatusOK, "goroutine profile")
	// The command line is not shown, because the URL of Redis in it may hold a password.
	if code, _ := clitest.Get(t, at+"/debug/pprof/cmdline"); code != http.StatusNotFound {
		t.Errorf("the command line: %d", code)
	}
	clitest.Becomes(t, at+"/debug/pprof/trace?seconds=0.05", http.StatusOK, "")
}
