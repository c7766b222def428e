package tools_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
	"github.com/duestream/duestream/integration/redistest"
)

// small are flags for scenarios that take little time. Their figures mean nothing.
var small = []string{"--messages", "1000", "--rounds", "2", "--callers", "4,8", "--rate", "500", "--rates", "5,200",
	"--duration", "400ms", "--queues", "5", "--bridges", "2"}

// smallBench returns the arguments of bench with small sizes.
func smallBench(args ...string) []string { return append(append([]string{"bench"}, args...), small...) }

// bench prints the server, its settings, and a table of figures with their floors, for the scenarios asked for, and
// leaves no keys.
func TestBenchPrintsFiguresBesideTheirFloorsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	c.Prefix = "" // the default of bench
	out := c.OK(smallBench("enqueue", "deliver", "trip", "lateness", "retry")...)
	for _, text := range []string{
		"server ", c.Server.Version(), "append-only file off", "PING ", "prefix duestream-bench",
		"MEDIAN", "FLOOR", "RATIO", "UNIT", "enqueue_one_caller ", "enqueue_one_caller_server",
		"enqueue_one_caller_commands", "enqueue_4_callers", "enqueue_8_callers", "enqueue_batches_of_100", "enqueue_8_batches_of_100",
		"deliver ", "drain_script_alone", "trip_idle_server", "trip_5_per_second_server", "trip_200_per_second_p99",
		"lateness_p99", "burst_last", "retry ",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if strings.Contains(out, "\nidle_") || strings.Contains(out, "\nmemory_") {
		t.Errorf("more than was asked for:\n%s", out)
	}
	holdsNothing(c)
}

// With --json, each figure has a unit, and a ratio if it has a floor. Scenarios come in a fixed order, not in that of
// the arguments.
func TestBenchJSON(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--appendonly", "yes", "--appendfsync", "everysec"))
	var got struct {
		Duestream, URL, Prefix string
		Server                 struct {
			Product, Version, AppendFsync string
			AOF                           bool
			Save                          *string
		}
		Client struct {
			CPUs   int     `json:"cpus"`
			PingMS float64 `json:"ping_ms"`
		}
		Results []struct {
			Scenario string
			Figures  []struct {
				Name, Unit   string
				Value        struct{ Median, Min, Max float64 }
				Floor, Ratio *struct{ Median, Min, Max float64 }
				Lower        bool `json:"lower_is_better"`
			}
		}
	}
	c.JSON(&got, smallBench("idle", "memory", "deliver")...)
	if got.Server.Version != c.Server.Version() || !got.Server.AOF || got.Server.AppendFsync != "everysec" ||
		got.Server.Save == nil ||
		got.Client.PingMS <= 0 || got.Client.CPUs < 1 || got.Prefix != c.Prefix {
		t.Errorf("%+v", got)
	}
	var order []string
	figures := map[string]bool{}
	for _, r := range got.Results {
		order = append(order, r.Scenario)
		for _, f := range r.Figures {
			figures[f.Name] = true
			if f.Unit == "" || (f.Floor == nil) != (f.Ratio == nil) {
				t.Errorf("%+v", f)
			}
			if f.Name == "deliver" && (f.Floor == nil || f.Value.Median <= 0 || f.Ratio.Median <= 0 || f.Lower) {
				t.Errorf("%+v", f)
			}
		}
	}
	if fmt.Sprint(order) != "[deliver idle memory]" || !figures["idle_requests_per_bridge"] || !figures["memory_scheduled"] {
		t.Errorf("scenarios %v, figures %v", order, figures)
	}
	holdsNothing(c)
}

// bench refuses a prefix with keys. With --force it runs beside them, removes its own keys, and leaves theirs.
func TestBenchRefusesAPrefixThatHoldsKeys(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	c.OK("schedule", "theirs", "hello", "--in", "1h")
	c.Fails(exit.Failure, []string{c.Prefix, "holds keys already", "--force"}, smallBench("deliver")...)
	c.OK(smallBench("deliver", "--force")...)
	client := c.Redis()
	// The queue of the other program, and the keys that all queues share, stay.
	left, err := client.Do(t.Context(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	for _, key := range left {
		if !strings.Contains(key, "{theirs}") && key != c.Prefix+":queues" && key != c.Prefix+":wake" {
			t.Errorf("%s is left", key)
		}
	}
	if n, _ := client.Do(t.Context(), client.B().Zcard().Key(c.Key("theirs", "due")).Build()).AsInt64(); err != nil ||
		n != 1 {
		t.Errorf("of their one message there are %d; error %v", n, err)
	}
}

// A scenario that is interrupted while it has keys ends soon, and removes them.
func TestBenchCleansUpWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, scenario := range tools.BenchNames() {
		c := clitest.NewOn(t, redistest.Own(t))
		client := c.Redis()
		r := c.Start("bench", scenario, "--messages", "100000", "--backlog", "20000", "--queues", "20000")
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			n, _ := client.Do(t.Context(), client.B().Dbsize().Build()).AsInt64()
			return n > 3, fmt.Sprint(scenario, ": keys: ", n) // more than the shared keys: the scenario is at work
		})
		stopped := time.Now()
		r.Stop()
		if code := r.Wait(); code != exit.Interrupted || !strings.Contains(r.Err.String(), "interrupted") {
			t.Errorf("%s: exit code %d\n%s", scenario, code, r.Err)
		}
		if took := time.Since(stopped); took > clitest.Patience {
			t.Errorf("%s went on for %s", scenario, took)
		}
		holdsNothing(c)
	}
}

// A value outside its limits is an error that names it. There is no server, so the error comes before the command
// connects.
func TestBenchWrongInputIsNamed(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, one := range []struct {
		says string
		args []string
	}{
		{`scenario "speed": must be one of enqueue, deliver, trip, lateness, idle, memory, retry`, []string{"speed"}},
		{`messages "0": must be between 1 and 20000000`, []string{"--messages", "0"}},
		{`payload "-1": must be between 0 and 16777216`, []string{"--payload", "-1"}},
		{`callers "0": must be between 1 and 10000`, []string{"--callers", "0"}},
		{`rate "-1": must be between 1 and 1000000`, []string{"--rate", "-1"}},
		{`rates "0": must be between 1 and 1000000`, []string{"--rates", "10,0"}},
		{`duration "1ms": must be between 100ms and 1h0m0s`, []string{"--duration", "1ms"}},
		{`backlog "-1": must be between 0 and 20000000`, []string{"--backlog", "-1"}},
		{`rounds "0": must be between 1 and 1000`, []string{"--rounds", "0"}},
		{`queues "0": must be between 1 and 100000`, []string{"--queues", "0"}},
		{`bridges "65": must be between 1 and 64`, []string{"--bridges", "65"}},
		{`prefix "a b"`, []string{"--prefix", "a b"}},
	} {
		c.Fails(exit.Invalid, []string{one.says}, append([]string{"bench"}, one.args...)...)
	}
	c.Fails(exit.Unavailable, []string{"hint: is Redis running"}, "bench")
}

// bench refuses the servers that serve refuses: one that may evict keys, and a replica.
func TestBenchRefusesAServerThatABridgeRefuses(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	c.Fails(exit.Failure, []string{"maxmemory-policy is allkeys-lru", "hint: "}, smallBench("deliver")...)
	host, port, _ := strings.Cut(redistest.Own(t).Addr(), ":")
	c = clitest.NewOn(t, redistest.Own(t, "--replicaof", host+" "+port))
	c.Fails(exit.Failure, []string{"is a replica, which takes no writes"}, smallBench("deliver")...)
}

// holdsNothing fails the test if the server, which is the test's own, has keys.
func holdsNothing(c *clitest.CLI) {
	c.T.Helper()
	client := c.Redis()
	if left, err := client.Do(context.Background(), client.B().Keys().Pattern("*").Build()).AsStrSlice(); err != nil ||
		len(left) > 0 {
		c.T.Errorf("left: %q, error %v", left, err)
	}
}
