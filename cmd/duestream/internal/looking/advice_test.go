package looking_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/looking"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// advised is a line of stats or top as JSON.
type advised struct {
	Queue  string           `json:"queue"`
	Advice []doctor.Finding `json:"advice"`
}

// codesOf returns the codes of findings, separated by spaces.
func codesOf(advice []doctor.Finding) string {
	var codes []string
	for _, f := range advice {
		codes = append(codes, f.Code)
	}
	return strings.Join(codes, " ")
}

// Stats and top name the fault and the next step in one line, in JSON too. They say nothing if all is in order. Each
// stage spoils a queue q with group g and a live bridge by do, and expects one finding with its code and a part of its
// text.
func TestStatsAndTopSayWhatIsWrongInOneLine(t *testing.T) {
	t.Parallel()
	for _, stage := range []struct {
		code, says string
		do         func(c *clitest.CLI)
	}{
		{"", "", func(*clitest.CLI) {}},
		{"D201", "Next: duestream serve", func(c *clitest.CLI) { c.Do("DEL", c.Prefix+":bridges") }},
		{"D309", "q: 2 messages are overdue, the oldest by 1m", func(c *clitest.CLI) {
			c.Do("ZADD", c.Key("q", "due"), c.Milliseconds(-time.Minute), "late", c.Milliseconds(-time.Second), "later")
		}},
		{"", "", func(c *clitest.CLI) { // a group reads the queue
			c.Do("ZADD", c.Key("q", "due"), c.Milliseconds(-time.Minute), "late")
			c.Do("XADD", c.Key("q", "stream"), "*", "id", "a", "payload", "")
			c.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.Key("q", "stream"), ">")
		}},
		{"D310", "and held. Next: duestream queue set q held=false", func(c *clitest.CLI) {
			c.Do("ZADD", c.Key("q", "due"), c.Milliseconds(-time.Minute), "late")
			c.OK("pause", "q")
		}},
		{"D401", "q: 1 entry, and no group. Next: run a worker", func(c *clitest.CLI) {
			c.Do("XGROUP", "DESTROY", c.Key("q", "stream"), "g")
			c.Do("XADD", c.Key("q", "stream"), "*", "id", "a", "payload", "")
		}},
		// No worker ever read for group h.
		{"D402", "q, group h: 3 entries wait, the oldest for 1m", func(c *clitest.CLI) {
			for i := range 3 {
				c.Do("XADD", c.Key("q", "stream"), c.Milliseconds(-90*time.Second)+fmt.Sprint("-", i+1), "id", "a", "payload", "")
			}
			c.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.Key("q", "stream"), ">")
			c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "h", "0")
		}},
		// The worker that holds the entry died an hour ago.
		{"D407", "q, group g: 1 entry is pending, the oldest without a sign of life for 1h0m", func(c *clitest.CLI) {
			c.OK("queue", "set", "q", "--create", "visibility_timeout=100ms")
			added := c.Do("XADD", c.Key("q", "stream"), "*", "id", "a", "payload", "")
			id, _ := added.ToString()
			c.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.Key("q", "stream"), ">")
			c.Do("XCLAIM", c.Key("q", "stream"), "g", "c", "0", id, "IDLE", "3600000", "JUSTID")
		}},
		{"D524", "q: 1 dead letter, one came", func(c *clitest.CLI) {
			c.Do("XADD", c.Key("q", "dead"), "*", "id", "a", "payload", "", "group", "g", "reason", "expired", "dead_ms", "1")
		}},
	} {
		t.Run(strings.TrimSpace(stage.code+" "+stage.says), func(t *testing.T) {
			t.Parallel()
			c := clitest.New(t)
			c.Do("HSET", c.Prefix+":queues", "q", "1")
			c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0", "MKSTREAM")
			beat(c)
			stage.do(c)
			// Wait, because the advice spares a server that has just started.
			redistest.Eventually(t, clitest.Patience, func() (bool, string) {
				var all []advised
				c.JSON(&all, "stats")
				return len(all) == 1 && codesOf(all[0].Advice) == stage.code, fmt.Sprintf("%+v", all)
			})
			var top advised
			c.JSON(&top, "top", "--once", "--interval", "100ms")
			if codesOf(top.Advice) != stage.code {
				t.Errorf("top: %+v", top.Advice)
			}
			for _, args := range [][]string{{"stats"}, {"top", "--once", "--interval", "100ms"}} {
				out := c.OK(args...)
				if got := strings.Count(out, "\n! "); got != min(1, len(stage.code)) || !strings.Contains(out, stage.says) {
					t.Errorf("%v: %s", args, out)
				}
			}
		})
	}
}

// Stats and top warn of a server that may evict queues, also with --watch. In the first line of the watch, D102 is that
// warning, and D201 says that no bridge is alive.
func TestAdviceNamesAServerThatEvicts(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	c.Do("HSET", c.Prefix+":queues", "q", "1")
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0", "MKSTREAM")
	watch := c.Start("stats", "--watch", "--json")
	watch.Says("\n")
	var line struct{ Advice []doctor.Finding }
	clitest.Decode(t, strings.SplitAfter(watch.Out.String(), "\n")[0], &line)
	if codesOf(line.Advice) != "D102 D201" || line.Advice[0].Severity != doctor.Error {
		t.Errorf("%+v", line)
	}
	const says = "maxmemory-policy is allkeys-lru"
	if out := c.OK("stats"); strings.Count(out, says) != 1 {
		t.Error(out)
	}
	out := c.OK("top", "--once", "--interval", "100ms")
	if strings.Count(out, "! (+1: duestream doctor) ") != 1 || !strings.Contains(out, says) {
		t.Error(out)
	}
}

// Stats print at most MaxAdvice lines of advice, and one line with the number of the others. Here each of nine queues
// has an entry and no group, and no bridge is alive.
func TestStatsCountTheAdviceThatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	for i := range 9 {
		queue := fmt.Sprint("q", i)
		c.Do("HSET", lua.NewGlobals(c.Prefix).Queues, queue, "1")
		c.Do("XADD", c.Key(queue, "stream"), "*", "id", "a", "payload", "")
	}
	out := c.OK("stats")
	if strings.Count(out, "\n! ") != looking.MaxAdvice+1 ||
		!strings.Contains(out, "\n! and 5 more. Next: duestream doctor\n") {
		t.Error(out)
	}
}

// beat writes the heartbeat of an old bridge that does no work. Its time is ahead of the clock, so that the heartbeat
// does not expire while a test waits for a busy machine.
func beat(c *clitest.CLI) {
	c.Do("ZADD", c.Prefix+":bridges", c.Milliseconds(10*time.Minute), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
}
