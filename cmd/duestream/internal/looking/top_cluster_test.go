package looking_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// On a cluster, top adds up partitions and masters. While one master is down, it still shows the queues of the
// others.
func TestTopOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	c := clitest.NewOn(t, nodes.Server())
	c.URL = nodes.URL()
	c.OK("queue", "partitions", "wide", "--create", "6")
	for i := range 30 {
		c.OK("schedule", "wide", "--in", "1h", "--id", fmt.Sprint("m-", i), "x")
	}
	var got struct {
		Server admin.ServerLoad
		Queues []struct {
			Queue                 string
			Partitions, Scheduled int
			Error                 string
		}
	}
	c.JSON(&got, "top", "--once", "--interval", "100ms")
	if got.Server.Servers != 3 || len(got.Queues) != 1 || got.Queues[0].Partitions != 6 || got.Queues[0].Scheduled != 30 {
		t.Errorf("%+v", got)
	}
	if out := c.OK("top", "--once", "--interval", "100ms"); !strings.Contains(out, "  3 servers\n") ||
		!strings.Contains(out, "wide ×6 ") {
		t.Error(out)
	}
	owner := func(key string) *redistest.Server { return nodes.Owner(nodes.Slot(key)) }
	registry := owner(lua.NewGlobals(c.Prefix).Queues)
	var here, away string // queues on the registry's master and on another one
	for i := 0; here == "" || away == ""; i++ {
		name := fmt.Sprint("q-", i)
		if owner(lua.NewKeys(c.Prefix, name).Due) == registry {
			here = name
		} else {
			away = name
		}
	}
	c.OK("schedule", here, "--in", "1h", "x")
	c.OK("schedule", away, "--in", "1h", "x")
	lines := c.Start("top", "--json", "--interval", "100ms", here, away)
	// state returns what the last line of top says about a queue.
	state := func(name string) (scheduled int, failed bool) {
		all := strings.Split(strings.TrimSpace(lines.Out.String()), "\n")
		got.Queues = nil
		clitest.Decode(t, all[len(all)-1], &got)
		for _, q := range got.Queues {
			if q.Queue == name {
				return q.Scheduled, q.Error != ""
			}
		}
		return -1, false
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Contains(lines.Out.String(), "\n"), lines.Err.String()
	})
	owner(lua.NewKeys(c.Prefix, away).Due).Kill()
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		_, lost := state(away)
		n, failed := state(here)
		return lost && n == 1 && !failed, lines.Out.String()[max(0, len(lines.Out.String())-1000):]
	})
	lines.Stop()
	if code := lines.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, lines.Err)
	}
}
