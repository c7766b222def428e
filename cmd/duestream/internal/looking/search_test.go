package looking_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// fillSearched puts a message into each state: car and bike are scheduled, late is a retry, held is pending at worker w
// of group g, new is ready, and order-42 is dead.
func fillSearched(c *clitest.CLI) {
	c.T.Helper()
	c.OK("schedule", "q", "--id", "car", "--in", "1h", "--header", "tenant=acme", "red car")
	c.OK("schedule", "other", "--id", "bike", "--in", "2h", "--header", "tenant=acme", "red bike")
	c.Retries("q", "late", time.Now().Add(time.Hour), "g")
	c.OneLetter("red and dead")
	due := c.Milliseconds(0)
	c.Do("XADD", c.Key("q", "stream"), "*", "id", "held", "payload", "blue", "due_ms", due, "attempt", "1")
	c.Do("XREADGROUP", "GROUP", "g", "w", "COUNT", "1", "STREAMS", c.Key("q", "stream"), ">")
	c.Do("XADD", c.Key("q", "stream"), "*", "id", "new", "payload", "red", "due_ms", due, "attempt", "1")
}

// found runs a search with --json, and returns the sorted hits as "state id".
func found(c *clitest.CLI, args ...string) string {
	c.T.Helper()
	var all []string
	for line := range strings.Lines(c.OK(slices.Concat([]string{"search", "--json"}, args)...)) {
		var h admin.Hit
		clitest.Decode(c.T, line, &h)
		all = append(all, string(h.State)+" "+h.ID)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// search finds messages in each state by each flag, in the given queues or in all. It prints a row for each hit, and
// says how many messages it looked at.
func TestSearchFindsMessagesByEachFlag(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	fillSearched(c)
	hour, day := time.Now().Add(90*time.Minute).Format(time.RFC3339), time.Now().Add(24*time.Hour).Format(time.RFC3339)
	const all = "dead order-42, pending held, ready new, retrying late, scheduled bike, scheduled car"
	for flags, want := range map[string]string{
		"":                             all,
		"other":                        "scheduled bike",
		"q other --text red":           "dead order-42, ready new, scheduled bike, scheduled car",
		"--text redder":                "",
		"--header tenant=acme":         "dead order-42, scheduled bike, scheduled car",
		"--state dead":                 "dead order-42",
		"--state ready,pending":        "pending held, ready new",
		"--state ready --state dead":   "dead order-42, ready new",
		"--error oops":                 "dead order-42",
		"--reason max_attempts":        "dead order-42",
		"--reason expired":             "",
		"--group g --state pending":    "pending held",
		"--id car --id new --id none":  "ready new, scheduled car",
		"--id-prefix order-":           "dead order-42",
		"--due-from " + hour:           "scheduled bike",
		"--due-until " + day:           "pending held, ready new, retrying late, scheduled bike, scheduled car",
		"--limit 0 --load 1 --text re": "dead order-42, ready new, scheduled bike, scheduled car",
	} {
		redistest.Want(t, flags, found(c, strings.Fields(flags)...), want)
	}
	out := c.OK("search", "--text", "red", "--header", "tenant=acme")
	for _, text := range []string{"STATE ", "scheduled  in 2h  ", "-             tenant=acme, 8 B", "dead ", "letter ",
		"max_attempts, error oops, debug=1, tenant=acme, 12 B", "\nfound 3: looked at 6 of 6 messages\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	redistest.Want(t, "nothing", c.OK("search", "q", "--text", "green"), "nothing found: looked at 5 of 5 messages\n")
	if r := c.Run("search", "--limit", "2"); r.Code != exit.OK || strings.Count(r.Out, "\n") != 3 ||
		!strings.Contains(r.Err, "stopped at 2 hits, looked at") {
		t.Errorf("%+v", r)
	}
	if names, _ := c.Offers("search", "--state", ""); fmt.Sprint(names) != "[scheduled retrying ready pending dead]" {
		t.Error(names)
	}
	if names, _ := c.Offers("search", "q", ""); fmt.Sprint(names) != "[other]" {
		t.Error(names)
	}
}

// A search that is interrupted keeps what it has printed, says how far it came, and exits with 130.
func TestSearchThatIsInterruptedKeepsWhatItFound(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "a", "--id", "first", "--in", "1h", "x")
	c.OK("schedule", "b", "--id", "second", "--in", "1h", "x")
	c.Fill("b", "m", 20_000, time.Now().Add(time.Hour))
	r := c.Start("search", "--json", "--limit", "0", "--load", "0.001", "--id-prefix", "first")
	r.Says(`"id":"first"`)
	r.Stop()
	redistest.Want(t, "exit code", r.Wait(), exit.Interrupted)
	r.Says("stopped: found 1, looked at ")
	redistest.Want(t, "lines", strings.Count(r.Out.String(), "\n"), 1)
}

// Each key is a command line, and its value a part of the error. There is no server, so the error comes before the
// command connects.
func TestWrongSearchesAreNamedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for line, want := range map[string]string{
		"--state gone":                        `state "gone": must be one of scheduled, retrying, ready, pending, dead`,
		"--state dead,":                       `state "": must be one of`,
		"--reason broken":                     `reason "broken": must be one of`,
		"--limit -1":                          "limit -1: must not be negative",
		"--load 0":                            "load 0: must be a share",
		"--load 1.1":                          "load 1.1: must be a share",
		"--load NaN":                          "load NaN: must be a share",
		"--group " + strings.Repeat("a", 300): "group",
		"{q}":                                 `queue "{q}"`,
		"--header tenant":                     "must be name=value",
		"--due-from tomorrow":                 "must be RFC 3339",
		"--due-from 2030-01-01T00:00:00Z --due-until 2029-01-01T00:00:00Z": `until "2029-01-01T00:00:00Z": must be after`,
		"--text " + strings.Repeat("a", admin.MaxSearchTextBytes+1):        "text",
		"--id-prefix " + strings.Repeat("a", 300):                          "prefix",
		"--id " + strings.Repeat("a", 300):                                 "id",
	} {
		c.Fails(exit.Invalid, []string{want}, append([]string{"search"}, strings.Fields(line)...)...)
	}
	c.Fails(exit.Unavailable, nil, "search", "--text", "a")
}
