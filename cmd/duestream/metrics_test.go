package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// address waits until a command logs its listening address, and returns it.
func (r *running) address() (addr string) { return addressIn(r.t, r.err) }

// addressIn waits until a log has the address of a listener, and returns it.
func addressIn(t *testing.T, log *buffer) (addr string) {
	t.Helper()
	redistest.Eventually(t, patience, func() (bool, string) {
		for line := range strings.Lines(log.String()) {
			var told struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &told) == nil && told.Address != "" {
				addr = told.Address
			}
		}
		return addr != "", log.String()
	})
	return addr
}

// get returns the status and the body of a response.
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
		`duestream_build_info{goversion="`+runtime.Version()+`",version="`+testVersion+`"} 1`)
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

// Metrics are most needed while a process waits for Redis.
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

// The last scraped counts of killed processes and the counts of their successors add up to the number of messages.
func TestCountsOfTheKilledAndTheLivingAddUp(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "--create", "visibility_timeout=1m") // so that a slow worker keeps its messages
	sums := map[string]float64{}
	for _, messages := range []int{12, 7} {
		var programs []*exec.Cmd
		var addresses []string
		for _, args := range [][]string{
			c.args([]string{"serve", "--metrics", "127.0.0.1:0"}),
			append(c.args([]string{"work", "q", "--group", "g", "-n", "4", "--metrics", "127.0.0.1:0"}), "--", "true"),
		} {
			cmd, log := c.programWith([]string{"DUESTREAM_LOG_LEVEL=info"}, args...)
			programs, addresses = append(programs, cmd), append(addresses, addressIn(t, log))
		}
		for range messages {
			c.ok("schedule", "q", "--in", "20ms", "x")
		}
		now := map[string]float64{}
		redistest.Eventually(t, patience, func() (bool, string) {
			clear(now)
			for _, addr := range addresses {
				_, text := get(t, "http://"+addr+"/metrics")
				for line := range strings.Lines(text) {
					series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
					name, _, _ := strings.Cut(series, "{")
					if v, err := strconv.ParseFloat(value, 64); err == nil && strings.Contains(series, `queue="q"`) {
						now[name] += v
					}
				}
			}
			return now["duestream_acknowledged_total"] == float64(messages) &&
				now["duestream_drained_total"] == float64(messages), fmt.Sprint(now)
		})
		for _, cmd := range programs {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for name, v := range now {
			sums[name] += v
		}
	}
	for name, want := range map[string]float64{
		"duestream_drained_total": 19, "duestream_delivered_total": 19, "duestream_acknowledged_total": 19,
		"duestream_lateness_seconds_count": 19, "duestream_handler_duration_seconds_count": 19, "duestream_lost_total": 0,
	} {
		if got := sums[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
