package looking_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// stats counts scheduled messages, and the lag of groups, as a table, as JSON and with --watch. The table has a line
// for each queue, each group and the sum.
func TestStatsCountsQueuesAndGroups(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	if out := c.OK("stats"); !strings.HasPrefix(out, "no queues\n") {
		t.Error(out)
	}
	c.Serve()
	c.OK("schedule", "one", "--in", "3d", "x")
	c.OK("schedule", "two", "x")
	r := c.Redis()
	if err := r.Do(t.Context(), r.B().XgroupCreate().Key(c.Key("two",
		"stream")).Group("g").Id("0").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	var all []admin.QueueStats
	c.JSON(&all, "stats")
	if len(all) != 2 || all[0].Queue != "one" || all[0].Scheduled != 1 || len(all[1].Groups) != 1 || all[1].Groups[0].Lag != 1 {
		t.Errorf("%+v", all)
	}
	out := c.OK("stats")
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[0], "QUEUE / GROUP") || !strings.HasPrefix(lines[1], "one ") ||
		!strings.Contains(lines[1], "in 3d0h") ||
		!strings.HasPrefix(lines[2], "two ") || !strings.HasPrefix(lines[3], "  g ") ||
		!strings.HasPrefix(lines[4], "all 2 queues ") || strings.Contains(out, "!") {
		t.Error(out)
	}
	watch := c.Start("stats", "one", "--watch", "--json")
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		return strings.Count(watch.Out.String(), "\n") >= 2, watch.Out.String()
	})
	watch.Stop()
	if code := watch.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, watch.Err)
	}
	for line := range strings.Lines(watch.Out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// stats adds up the partitions of a queue. --partitions adds a line for each of them.
func TestStatsShowsPartitionsWhenAsked(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "partitions", "q", "--create", "3")
	for i := range 3 {
		c.InPartition(i, "ZADD", "due", "9999999999999", "m") // due in the year 2286
	}
	out := c.OK("stats", "q")
	if !strings.Contains(out, "q (3 partitions)  3  ") || strings.Contains(out, "partition 0") {
		t.Error(out)
	}
	if out := c.OK("stats", "q", "--partitions"); !strings.Contains(out, "  partition 2") {
		t.Error(out)
	}
	for args, n := range map[string]int{"stats q": 0, "stats q --partitions": 3} {
		var all []admin.QueueStats
		c.JSON(&all, strings.Fields(args)...)
		if all[0].Partitions != 3 || all[0].Scheduled != 3 || len(all[0].ByPartition) != n {
			t.Errorf("%s: %+v", args, all)
		}
	}
}
