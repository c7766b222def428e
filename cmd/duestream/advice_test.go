package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// advised is a line of stats or top as JSON.
type advised struct {
	Queue  string           `json:"queue"`
	Advice []doctor.Finding `json:"advice"`
}

func codesOf(advice []doctor.Finding) string {
	var codes []string
	for _, f := range advice {
		codes = append(codes, f.Code)
	}
	return strings.Join(codes, " ")
}

// beat writes the heartbeat of an old bridge that does no work. Its time is ahead of the clock, so that the heartbeat
// does not expire while a test waits for a busy machine.
func (c *cli) beat() {
	c.do("ZADD", c.prefix+":bridges", c.ms(10*time.Minute), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
}

// ms returns the time of the server's clock plus d, in milliseconds.
func (c *cli) ms(d time.Duration) string {
	c.t.Helper()
	r := c.redis()
	clock, err := r.Do(c.t.Context(), r.B().Time().Build()).AsIntSlice()
	if err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprint(clock[0]*1000 + clock[1]/1000 + d.Milliseconds())
}

// Stats and top name the fault and the next step in one line, in JSON too. They say nothing if all is in order.
func TestStatsAndTopSayWhatIsWrongInOneLine(t *testing.T) {
	t.Parallel()
	for _, stage := range []struct {
		code, says string
		do         func(c *cli)
	}{
		{"", "", func(*cli) {}},
		{"D201", "Next: duestream serve", func(c *cli) { c.do("DEL", c.prefix+":bridges") }},
		{"D309", "q: 2 messages are overdue, the oldest by 1m", func(c *cli) {
			c.do("ZADD", c.key("q", "due"), c.ms(-time.Minute), "late", c.ms(-time.Second), "later")
		}},
		{"", "", func(c *cli) { // a group reads the queue
			c.do("ZADD", c.key("q", "due"), c.ms(-time.Minute), "late")
			c.do("XADD", c.key("q", "stream"), "*", "id", "a", "payload", "")
			c.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.key("q", "stream"), ">")
		}},
		{"D310", "and held. Next: duestream queue set q held=false", func(c *cli) {
			c.do("ZADD", c.key("q", "due"), c.ms(-time.Minute), "late")
			c.ok("pause", "q")
		}},
		{"D401", "q: 1 entry, and no group. Next: run a worker", func(c *cli) {
			c.do("XGROUP", "DESTROY", c.key("q", "stream"), "g")
			c.do("XADD", c.key("q", "stream"), "*", "id", "a", "payload", "")
		}},
		{"D402", "q, group h: 3 entries wait, the oldest for 1m", func(c *cli) { // no worker ever served it
			for i := range 3 {
				c.do("XADD", c.key("q", "stream"), c.ms(-90*time.Second)+fmt.Sprint("-", i+1), "id", "a", "payload", "")
			}
			c.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.key("q", "stream"), ">")
			c.do("XGROUP", "CREATE", c.key("q", "stream"), "h", "0")
		}},
		{"D407", "q, group g: 1 entry is pending, the oldest without a sign of life for 1h0m", func(c *cli) { // its worker died
			c.ok("queue", "set", "q", "--create", "visibility_timeout=100ms")
			added := c.do("XADD", c.key("q", "stream"), "*", "id", "a", "payload", "")
			id, _ := added.ToString()
			c.do("XREADGROUP", "GROUP", "g", "c", "STREAMS", c.key("q", "stream"), ">")
			c.do("XCLAIM", c.key("q", "stream"), "g", "c", "0", id, "IDLE", "3600000", "JUSTID")
		}},
		{"D524", "q: 1 dead letter, one came", func(c *cli) {
			c.do("XADD", c.key("q", "dead"), "*", "id", "a", "payload", "", "group", "g", "reason", "expired", "dead_ms", "1")
		}},
	} {
		t.Run(strings.TrimSpace(stage.code+" "+stage.says), func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.do("HSET", c.prefix+":queues", "q", "1")
			c.do("XGROUP", "CREATE", c.key("q", "stream"), "g", "0", "MKSTREAM")
			c.beat()
			stage.do(c)
			redistest.Eventually(t, patience, func() (bool, string) { // a server that just started gets some seconds
				var all []advised
				c.json(&all, "stats")
				return len(all) == 1 && codesOf(all[0].Advice) == stage.code, fmt.Sprintf("%+v", all)
			})
			var top advised
			c.json(&top, "top", "--once", "--interval", "100ms")
			if codesOf(top.Advice) != stage.code {
				t.Errorf("top: %+v", top.Advice)
			}
			for _, args := range [][]string{{"stats"}, {"top", "--once", "--interval", "100ms"}} {
				out := c.ok(args...)
				if got := strings.Count(out, "\n! "); got != min(1, len(stage.code)) || !strings.Contains(out, stage.says) {
					t.Errorf("%v: %s", args, out)
				}
			}
		})
	}
}

// Every command that looks warns of a server that may evict queues, also with --watch.
func TestAdviceNamesAServerThatEvicts(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	c.do("HSET", c.prefix+":queues", "q", "1")
	c.do("XGROUP", "CREATE", c.key("q", "stream"), "g", "0", "MKSTREAM")
	watch := c.start("stats", "--watch", "--json")
	watch.says("\n")
	var line struct{ Advice []doctor.Finding }
	decode(t, strings.SplitAfter(watch.out.String(), "\n")[0], &line)
	if codesOf(line.Advice) != "D102 D201" || line.Advice[0].Severity != doctor.Error {
		t.Errorf("%+v", line)
	}
	const says = "maxmemory-policy is allkeys-lru"
	if out := c.ok("stats"); strings.Count(out, says) != 1 {
		t.Error(out)
	}
	out := c.ok("top", "--once", "--interval", "100ms")
	if strings.Count(out, "! (+1: duestream doctor) ") != 1 || !strings.Contains(out, says) {
		t.Error(out)
	}
}

// Stats count the advice that does not fit.
func TestStatsCountTheAdviceThatTheyLeaveOut(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for i := range 9 {
		queue := fmt.Sprint("q", i)
		c.do("HSET", lua.NewGlobals(c.prefix).Queues, queue, "1")
		c.do("XADD", c.key(queue, "stream"), "*", "id", "a", "payload", "")
	}
	out := c.ok("stats")
	if strings.Count(out, "\n! ") != mostAdvice+1 || !strings.Contains(out, "\n! and 5 more. Next: duestream doctor\n") {
		t.Error(out)
	}
}
