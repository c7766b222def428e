package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// in runs a command of Redis on a key of a partition.
func (c *cli) in(partition int, command, key string, args ...string) {
	c.t.Helper()
	r := c.redis()
	all := append([]string{c.key(lua.PartitionName("q", partition), key)}, args...)
	if err := r.Do(c.t.Context(), r.B().Arbitrary(command).Args(all...).Build()).Error(); err != nil {
		c.t.Fatal(err)
	}
}

func TestQueuePartitionsGrowsAndShows(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "set", "q", "max_attempts=3")
	var got partitionCounts
	c.json(&got, "queue", "partitions", "q")
	if fmt.Sprint(got.Queue, got.Partitions, got.Counts, len(got.ByPartition)) != "q1 [1] 1" {
		t.Errorf("%+v", got)
	}
	if out := c.ok("queue", "partitions", "q", "4"); out != "q has 4 partitions\n" {
		t.Error(out)
	}
	got = partitionCounts{}
	c.json(&got, "queue", "partitions", "q", "6")
	if fmt.Sprint(got) != "{q 6 [1 4 6] false []}" {
		t.Errorf("%+v", got)
	}
	c.fails(exitFailure, []string{"q has 6 partitions, and cannot have 5: a queue never shrinks", "hint: "}, "queue", "partitions", "q", "5")
	for i := range 6 {
		c.in(i, "ZADD", "due", "9999999999999", fmt.Sprint("m-", i))
	}
	out := c.ok("queue", "partitions", "q")
	for _, text := range []string{"partitions     6\n", "counts so far  1,4,6\n", "PARTITION", "\n5          1          0        0      0        0\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.in(3, "HSET", "policy", "max_attempts", "9")
	if out := c.ok("queue", "partitions", "q"); !strings.Contains(out, "! partition 3: another policy than partition 0") {
		t.Error(out)
	}
	if out := c.ok("queue", "show", "q"); !strings.Contains(out, "partitions          6\n") {
		t.Error(out)
	}
	var policy struct{ Partitions int }
	c.json(&policy, "queue", "show", "q")
	if policy.Partitions != 6 {
		t.Errorf("%+v", policy)
	}
	if out := c.ok("__complete", "queue", "partitions", ""); !strings.HasPrefix(out, "q\n") {
		t.Error(out)
	}
}

func TestStatsShowsPartitionsWhenAsked(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "3")
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

func TestDeadLettersOfPartitionsAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "3")
	for i := range 3 {
		group := c.redis().B().XgroupCreate().Key(c.key(lua.PartitionName("q", i), "stream")).Group("g").Id("0").Mkstream().Build()
		if err := c.redis().Do(t.Context(), group).Error(); err != nil {
			t.Fatal(err)
		}
		c.in(i, "XADD", "dead", fmt.Sprint(1000+i, "-1"), "id", fmt.Sprint("m-", i), "payload", "x", "attempt", "1", "group", "g", "reason", "dead_letter")
	}
	out := c.ok("dead", "list", "q")
	if first, last := strings.Index(out, "2/1002-1"), strings.Index(out, "\n1000-1"); first < 0 || last < first {
		t.Errorf("newest first:\n%s", out)
	}
	var l admin.Letter
	c.json(&l, "dead", "show", "q", "2/1002-1")
	if l.ID != "m-2" || l.Letter != "2/1002-1" {
		t.Errorf("%+v", l)
	}
	if out := c.ok("dead", "redrive", "q", "2/1002-1"); !strings.HasPrefix(out, "redriven 1,") {
		t.Error(out)
	}
	if out := c.ok("dead", "purge", "q", "1/1001-1"); out != "purged 1\n" {
		t.Error(out)
	}
	c.fails(exitNotFound, nil, "dead", "show", "q", "1/1001-1")
	if out := c.ok("dead", "purge", "q", "--all", "--yes"); out != "purged 1\n" {
		t.Error(out)
	}
}

func TestPendingAndShowNameThePartition(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "8")
	counts := admin.PartitionCounts{1, 8}
	id := ""
	for n := 0; counts.Of(id) != 3; n++ {
		id = fmt.Sprint("m-", n)
	}
	if _, err := lua.EnsureGroup(t.Context(), c.redis(), lua.NewKeys(c.prefix, "q/3"), "g"); err != nil {
		t.Fatal(err)
	}
	c.in(3, "XADD", "stream", "1000-1", "id", id, "payload", "x", "attempt", "1", "due_ms", "1000")
	r := c.redis()
	read := r.B().Xreadgroup().Group("g", "me").Count(1).Streams().Key(c.key("q/3", "stream")).Id(">").Build()
	if err := r.Do(t.Context(), read).Error(); err != nil {
		t.Fatal(err)
	}
	if out := c.ok("pending", "q", "--group", "g"); !strings.Contains(out, "3/1000-1  "+id) {
		t.Error(out)
	}
	var places []bridge.Place
	c.json(&places, "show", "q", id)
	if len(places) != 1 || places[0].Partition != 3 || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	if out := c.ok("show", "q", id); !strings.Contains(out, "partition  3\n") {
		t.Error(out)
	}
}
