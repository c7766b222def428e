package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// On a cluster, top adds up partitions and masters. While one master is down, it still shows the queues of the
// others.
func TestTopOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	c := newCLIOn(t, nodes.Server())
	c.url = nodes.URL()
	c.ok("queue", "partitions", "wide", "--create", "6")
	for i := range 30 {
		c.ok("schedule", "wide", "--in", "1h", "--id", fmt.Sprint("m-", i), "x")
	}
	var got struct {
		Server admin.ServerLoad
		Queues []struct {
			Queue                 string
			Partitions, Scheduled int
			Error                 string
		}
	}
	c.json(&got, "top", "--once", "--interval", "100ms")
	if got.Server.Servers != 3 || len(got.Queues) != 1 || got.Queues[0].Partitions != 6 || got.Queues[0].Scheduled != 30 {
		t.Errorf("%+v", got)
	}
	if out := c.ok("top", "--once", "--interval", "100ms"); !strings.Contains(out, "  3 servers\n") ||
		!strings.Contains(out, "wide ×6 ") {
		t.Error(out)
	}
	owner := func(key string) *redistest.Server { return nodes.Owner(nodes.Slot(key)) }
	registry := owner(lua.NewGlobals(c.prefix).Queues)
	var here, away string // queues on the registry's master and on another one
	for i := 0; here == "" || away == ""; i++ {
		name := fmt.Sprint("q-", i)
		if owner(lua.NewKeys(c.prefix, name).Due) == registry {
			here = name
		} else {
			away = name
		}
	}
	c.ok("schedule", here, "--in", "1h", "x")
	c.ok("schedule", away, "--in", "1h", "x")
	lines := c.start("top", "--json", "--interval", "100ms", here, away)
	state := func(name string) (scheduled int, failed bool) {
		all := strings.Split(strings.TrimSpace(lines.out.String()), "\n")
		got.Queues = nil
		decode(t, all[len(all)-1], &got)
		for _, q := range got.Queues {
			if q.Queue == name {
				return q.Scheduled, q.Error != ""
			}
		}
		return -1, false
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Contains(lines.out.String(), "\n"), lines.err.String()
	})
	owner(lua.NewKeys(c.prefix, away).Due).Kill()
	redistest.Eventually(t, patience, func() (bool, string) {
		_, lost := state(away)
		n, failed := state(here)
		return lost && n == 1 && !failed, lines.out.String()[max(0, len(lines.out.String())-1000):]
	})
	lines.stop()
	if code := lines.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, lines.err)
	}
}
