package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestConsumersAndPendingSayWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	if out := c.ok("consumers", "q"); out != "no consumers\n" {
		t.Error(out)
	}
	c.ok("queue", "partitions", "q", "--create", "2")
	w := c.work(dir, `echo x >> "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done`,
		"--consumer", "me", "--concurrency", "6") // more than there are messages, to read both partitions
	for i := range 3 { // m-4 is in the second partition
		c.ok("schedule", "q", "--id", fmt.Sprint("m-", i+2), "x")
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		text, err := os.ReadFile(filepath.Join(dir, "began"))
		return strings.Count(string(text), "x") == 3, fmt.Sprint(string(text), err)
	})
	matches(t, c.ok("consumers", "q"), `GROUP  CONSUMER  PENDING  OLDEST +IDLE +INACTIVE  SEEN`,
		`g      me        3 +\S+ +\S+ +(-|\S+) +alive`)
	var list []admin.Consumer
	redistest.Eventually(t, patience, func() (bool, string) { // listed for a partition once it has read there
		list = nil
		c.json(&list, "consumers", "q", "--group", "g")
		return len(list) == 1 && len(list[0].Partitions) == 2, fmt.Sprintf("%+v", list)
	})
	if len(list) != 1 || list[0].Consumer != "me" || list[0].Pending != 3 || !list[0].Alive || len(list[0].Partitions) != 2 {
		t.Errorf("%+v", list)
	}
	c.fails(exitNotFound, []string{"no such consumer group"}, "consumers", "q", "-g", "other")
	if out := c.ok("pending", "q", "g", "--limit", "2"); !strings.HasPrefix(out, "ENTRY") || strings.Count(out, "  me  ") != 2 ||
		!strings.HasSuffix(out, "\n(and 1 more: see --limit)\n") {
		t.Error(out)
	}
	if out := c.ok("pending", "q", "g", "--limit", "2", "--consumer", "me", "--min-idle", "1ms"); !strings.Contains(out,
		"(there may be more: see --limit)\n") {
		t.Error(out)
	}
	r := c.run("pending", "q", "--group", "g", "--limit", "2", "--json")
	var entries []admin.PendingEntry
	decode(t, r.out, &entries)
	if len(entries) != 2 || r.err != `{"note":"(and 1 more: see --limit)"}`+"\n" {
		t.Errorf("%+v, %s", entries, r.err)
	}
	for _, e := range entries {
		if e.Consumer != "me" || e.Deliveries != 1 || e.Attempt != 1 || !strings.HasPrefix(e.ID, "m-") {
			t.Errorf("%+v", e)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.gone("m-4")
	w.stop()
}

func TestPendingAndShowNameThePartition(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.ok("queue", "partitions", "q", "--create", "8")
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
	matches(t, c.ok("pending", "q", "--group", "g"), `ENTRY +ID +CONSUMER +HELD +IDLE +DELIVERIES +ATTEMPT`,
		`3/1000-1  `+id+` +me +[\d.]+m?s +[\d.]+m?s +1 +1`)
	var places []admin.Place
	c.json(&places, "show", "q", id)
	if len(places) != 1 || places[0].Partition != 3 || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	if out := c.ok("show", "q", id); !strings.Contains(out, "partition  3\n") {
		t.Error(out)
	}
}
