package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

func TestStatsCountsQueuesAndGroups(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	if out := c.ok("stats"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.serve()
	c.ok("schedule", "one", "--in", "3d", "x")
	c.ok("schedule", "two", "x")
	r := c.redis()
	if err := r.Do(t.Context(), r.B().XgroupCreate().Key(c.key("two", "stream")).Group("g").Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	var all []admin.QueueStats
	c.json(&all, "stats")
	if len(all) != 2 || all[0].Queue != "one" || all[0].Scheduled != 1 || len(all[1].Groups) != 1 || all[1].Groups[0].Lag != 1 {
		t.Errorf("%+v", all)
	}
	out := c.ok("stats")
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], "QUEUE / GROUP") || !strings.HasPrefix(lines[1], "one ") ||
		!strings.Contains(lines[1], "in 3d0h") ||
		!strings.HasPrefix(lines[2], "two ") || !strings.HasPrefix(lines[3], "  g ") ||
		!strings.HasPrefix(lines[4], "all 2 queues ") || strings.Contains(out, "!") {
		t.Error(out)
	}
	watch := c.start("stats", "one", "--watch", "--json")
	redistest.Eventually(t, patience, func() (bool, string) {
		return strings.Count(watch.out.String(), "\n") >= 2, watch.out.String()
	})
	watch.stop()
	if code := watch.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, watch.err)
	}
	for line := range strings.Lines(watch.out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

func TestStatsShowsPartitionsWhenAsked(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "--create", "3")
	for i := range 3 {
		c.in(i, "ZADD", "due", "9999999999999", "m")
	}
	out := c.ok("stats", "q")
	if !strings.Contains(out, "q (3 partitions)  3  ") || strings.Contains(out, "partition 0") {
		t.Error(out)
	}
	if out := c.ok("stats", "q", "--partitions"); !strings.Contains(out, "  partition 2") {
		t.Error(out)
	}
	for args, n := range map[string]int{"stats q": 0, "stats q --partitions": 3} {
		var all []admin.QueueStats
		c.json(&all, strings.Fields(args)...)
		if all[0].Partitions != 3 || all[0].Scheduled != 3 || len(all[0].ByPartition) != n {
			t.Errorf("%s: %+v", args, all)
		}
	}
}
