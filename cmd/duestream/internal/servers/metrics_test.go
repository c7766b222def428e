package servers_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// serve and work show their metrics at the address of --metrics, and nothing after they have ended. An address in use
// ends the process.
func TestServeAndWorkShowMetrics(t *testing.T) {
	t.Setenv("DUESTREAM_LOG_LEVEL", "info")
	c := clitest.New(t)
	bridge := c.Start("serve", "--metrics", "127.0.0.1:0")
	worker := c.Start("work", "q", "--group", "g", "--metrics", "127.0.0.1:0", "--", "true")
	c.OK("schedule", "q", "--in", "10ms", "hello")
	// shows waits until the metrics of a process have all of these lines.
	shows := func(r *clitest.Running, lines ...string) {
		addr := r.Address()
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			code, text := clitest.Get(t, "http://"+addr+"/metrics")
			for _, line := range lines {
				if !strings.Contains(text, "\n"+line+"\n") {
					return false, fmt.Sprint(code, " no ", line, " in\n", text)
				}
			}
			return code == http.StatusOK, text
		})
	}
	shows(bridge, `duestream_drained_total{queue="q"} 1`, `duestream_up 1`, `duestream_lag{group="g",queue="q"} 0`,
		`duestream_build_info{goversion="`+runtime.Version()+`",version="`+clitest.Version+`"} 1`)
	shows(worker, `duestream_acknowledged_total{group="g",queue="q"} 1`)
	addr := bridge.Address()
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/": http.StatusNotFound} {
		if code, _ := clitest.Get(t, "http://"+addr+path); code != want {
			t.Errorf("%s answers %d", path, code)
		}
	}
	if code := c.Start("serve", "--metrics", addr).Wait(); code != exit.Failure {
		t.Errorf("serve on an address that is taken: exit code %d", code)
	}
	bridge.Stop()
	if code := bridge.Wait(); code != exit.OK {
		t.Errorf("exit code %d\n%s", code, bridge.Err)
	}
	if reply, err := http.Get("http://" + addr + "/metrics"); err == nil {
		_ = reply.Body.Close()
		t.Error("it still answers after the end")
	}
}

// Metrics are most needed while a process waits for Redis, so they are served before the connection exists, without the
// figures that need it.
func TestMetricsAnswerBeforeRedisIsThere(t *testing.T) {
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	bridge := c.Start("serve", "--metrics", "127.0.0.1:0")
	code, text := clitest.Get(t, "http://"+bridge.Address()+"/metrics")
	if code != http.StatusOK || !strings.Contains(text, "\nduestream_build_info{") || strings.Contains(text, "\nduestream_up") {
		t.Errorf("%d %s", code, text)
	}
}

// A wrong address or limit for metrics is an error that names the setting, from a flag or from the environment.
func TestWrongMetricsSettingsAreNamed(t *testing.T) {
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	c.Fails(exit.Invalid, []string{`metrics "9090"`, "host:port"}, "serve", "--metrics", "9090")
	c.Fails(exit.Invalid, []string{"metrics-queues 0"}, "serve", "--metrics", "127.0.0.1:0", "--metrics-queues", "0")
	t.Setenv("DUESTREAM_METRICS_ADDR", "nowhere")
	c.Fails(exit.Invalid, []string{`metrics "nowhere"`}, "work", "q", "--group", "g", "--", "true")
}

// The last scraped counts of killed processes and the counts of their successors add up to the number of messages.
func TestCountsOfTheKilledAndTheLivingAddUp(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "visibility_timeout=1m") // so that a slow worker keeps its messages
	sums := map[string]float64{}
	const firstRun, secondRun = 12, 7 // messages before and after the kill
	const sent = firstRun + secondRun
	for _, messages := range []int{firstRun, secondRun} {
		var programs []*exec.Cmd
		var addresses []string
		for _, args := range [][]string{
			c.Args([]string{"serve", "--metrics", "127.0.0.1:0"}),
			append(c.Args([]string{"work", "q", "--group", "g", "-n", "4", "--metrics", "127.0.0.1:0"}), "--", "true"),
		} {
			cmd, log := c.ProgramWith([]string{"DUESTREAM_LOG_LEVEL=info"}, args...)
			programs, addresses = append(programs, cmd), append(addresses, clitest.AddressIn(t, log))
		}
		for range messages {
			c.OK("schedule", "q", "--in", "20ms", "x")
		}
		now := map[string]float64{}
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			clear(now)
			for _, addr := range addresses {
				_, text := clitest.Get(t, "http://"+addr+"/metrics")
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
		"duestream_drained_total": sent, "duestream_delivered_total": sent, "duestream_acknowledged_total": sent,
		"duestream_lateness_seconds_count": sent, "duestream_handler_duration_seconds_count": sent, "duestream_lost_total": 0,
	} {
		if got := sums[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
