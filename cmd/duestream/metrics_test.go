package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// address waits until a command says where it listens, and returns that.
func (r *running) address() (addr string) {
	r.t.Helper()
	redistest.Eventually(r.t, patience, func() (bool, string) {
		for line := range strings.Lines(r.err.String()) {
			var told struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &told) == nil && told.Address != "" {
				addr = told.Address
			}
		}
		return addr != "", r.err.String()
	})
	return addr
}

// get returns what an address answers.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	reply, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

func TestServeAndWorkShowMetrics(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	c := newCLI(t)
	bridge := c.start("serve", "--metrics", "127.0.0.1:0")
	worker := c.start("work", "q", "--group", "g", "--metrics", "127.0.0.1:0", "--", "true")
	c.ok("schedule", "q", "--in", "10ms", "hello")
	shows := func(r *running, lines ...string) {
		addr := r.address()
		redistest.Eventually(t, patience, func() (bool, string) {
			code, text := get(t, "http://"+addr+"/metrics")
			for _, line := range lines {
				if !strings.Contains(text, "\n"+line+"\n") {
					return false, fmt.Sprint(code, " no ", line, " in\n", text)
				}
			}
			return code == http.StatusOK, text
		})
	}
	shows(bridge, `duestream_drained_total{queue="q"} 1`, `duestream_up 1`, `duestream_lag{group="g",queue="q"} 0`,
		`duestream_build_info{goversion="`+runtime.Version()+`",version="`+version+`"} 1`)
	shows(worker, `duestream_acknowledged_total{group="g",queue="q"} 1`)
	addr := bridge.address()
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/": http.StatusNotFound} {
		if code, _ := get(t, "http://"+addr+path); code != want {
			t.Errorf("%s answers %d", path, code)
		}
	}
	if code := c.start("serve", "--metrics", addr).wait(); code != exitFailure {
		t.Errorf("serve on an address that is taken: exit code %d", code)
	}
	bridge.stop()
	if code := bridge.wait(); code != exitOK {
		t.Errorf("exit code %d\n%s", code, bridge.err)
	}
	if reply, err := http.Get("http://" + addr + "/metrics"); err == nil {
		_ = reply.Body.Close()
		t.Error("it still answers after the end")
	}
}

// A process that waits for Redis is looked at most.
func TestMetricsAnswerBeforeRedisIsThere(t *testing.T) {
	c := &cli{t: t, url: unreachable}
	bridge := c.start("serve", "--metrics", "127.0.0.1:0")
	code, text := get(t, "http://"+bridge.address()+"/metrics")
	if code != http.StatusOK || !strings.Contains(text, "\nduestream_build_info{") || strings.Contains(text, "\nduestream_up") {
		t.Errorf("%d %s", code, text)
	}
}

func TestWrongMetricsSettingsAreNamed(t *testing.T) {
	c := &cli{t: t, url: unreachable}
	c.fails(exitInvalid, []string{`metrics "9090"`, "host:port"}, "serve", "--metrics", "9090")
	c.fails(exitInvalid, []string{"metrics-queues 0"}, "serve", "--metrics", "127.0.0.1:0", "--metrics-queues", "0")
	t.Setenv("DUESTREAM_METRICS_ADDR", "nowhere")
	c.fails(exitInvalid, []string{`metrics "nowhere"`}, "work", "q", "--group", "g", "--", "true")
}
