package command_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
)

// Regression: a reason given to FCALL printed escape sequences in the lists of dead letters. Whatever a foreign client
// writes anywhere, no command prints a control sequence, neither as text nor as JSON nor in an error. With --color
// always, the sequences of our own colours are allowed.
func TestNoTextFromRedisGivesATerminalOrders(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	do := func(args ...string) {
		t.Helper()
		if err := c.Redis().Do(t.Context(), c.Redis().B().Arbitrary(args...).Build()).Error(); err != nil {
			t.Fatal(args, err)
		}
	}
	do("HSET", c.Prefix+":queues", "q", "1", clitest.Hostile, "1")
	do("XGROUP", "CREATE", c.Key("q", "stream"), clitest.Hostile, "0", "MKSTREAM")
	do("XADD", c.Key("q", "stream"), "1-1", "id", clitest.Hostile, "payload", clitest.Hostile, "attempt", "1",
		"h:"+clitest.Hostile, clitest.Hostile,
		"error", clitest.Hostile, "for", clitest.Hostile)
	do("XREADGROUP", "GROUP", clitest.Hostile, clitest.Hostile, "COUNT", "1", "STREAMS", c.Key("q", "stream"), ">")
	do("XADD", c.Key("q", "dead"), "1-1", "id", clitest.Hostile, "payload", clitest.Hostile, "group", clitest.Hostile,
		"reason", clitest.Hostile, "error",
		clitest.Hostile, "attempt", clitest.Hostile,
		"h:"+clitest.Hostile, clitest.Hostile, clitest.Hostile, clitest.Hostile, "dead_ms", "1", "entry", clitest.Hostile)
	do("ZADD", c.Key("q", "due"), "4102444800000", clitest.Hostile) // due in the year 2100
	do("HSET", c.Key("q", "payload"), clitest.Hostile, clitest.Hostile)
	do("HSET", c.Key("q", "meta"), clitest.Hostile, `{"h:`+"\u009b"+`":"`+"\u202e"+`"}`)
	do("HSET", c.Key("q", "policy"), "max_attempts", clitest.Hostile)
	do("ZADD", c.Prefix+":bridges", "1", clitest.Hostile)
	for _, line := range []string{
		"stats", "stats q", "peek q --payload", "queue show", "queue show q", "consumers q", "dead list q",
		"dead list q --summary", "dead show q 1-1", "find x",
		"health", "top --once --interval 100ms", "doctor --quick", "export q", "dead redrive q --all --dry-run",
		"dead purge q --all --dry-run", "functions show",
		"show q x", "dead show q 2-2", "cancel q x", "pending q x",
	} {
		var three sync.WaitGroup
		for _, with := range []string{"", " --json", " --color always"} {
			if with == " --json" && line == "export q" { // export has no --json
				continue
			}
			three.Go(func() {
				r := c.Run(strings.Fields(line + with)...)
				for _, text := range []string{r.Out, r.Err} {
					if with == " --color always" {
						text = clitest.Controls.ReplaceAllString(text, "")
					}
					if bad := clitest.Orders(text); len(bad) > 0 {
						t.Errorf("%s%s prints %q", line, with, bad)
					}
				}
			})
		}
		three.Wait()
	}
}
