package looking_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// consumers and pending show the worker that holds three messages in two partitions, how long it has held them, and how
// many entries a limit leaves out.
func TestConsumersAndPendingSayWhoHoldsWhat(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	if out := c.OK("consumers", "q"); out != "no consumers\n" {
		t.Error(out)
	}
	c.OK("queue", "partitions", "q", "--create", "2")
	w := c.Work(dir, `echo x >> "$1/began"; while ! test -e "$1/go"; do sleep 0.01; done`,
		// More slots than messages, so that the worker keeps reading both partitions.
		"--consumer", "me", "--concurrency", "6")
	for i := range 3 { // m-4 is in the second partition
		c.OK("schedule", "q", "--id", fmt.Sprint("m-", i+2), "x")
	}
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		text, err := os.ReadFile(filepath.Join(dir, "began"))
		return strings.Count(string(text), "x") == 3, fmt.Sprint(string(text), err)
	})
	clitest.Matches(t, c.OK("consumers", "q"), `GROUP  CONSUMER  PENDING  OLDEST +IDLE +INACTIVE  SEEN`,
		`g      me        3 +\S+ +\S+ +(-|\S+) +alive`)
	var list []admin.Consumer
	// A partition lists a consumer once it has read there.
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		list = nil
		c.JSON(&list, "consumers", "q", "--group", "g")
		return len(list) == 1 && len(list[0].Partitions) == 2, fmt.Sprintf("%+v", list)
	})
	if len(list) != 1 || list[0].Consumer != "me" || list[0].Pending != 3 || !list[0].Alive || len(list[0].Partitions) != 2 {
		t.Errorf("%+v", list)
	}
	c.Fails(exit.NotFound, []string{"no such consumer group"}, "consumers", "q", "-g", "other")
	if out := c.OK("pending", "q", "g", "--limit", "2"); !strings.HasPrefix(out, "ENTRY") ||
		strings.Count(out, "  me  ") != 2 ||
		!strings.HasSuffix(out, "\n(and 1 more: see --limit)\n") {
		t.Error(out)
	}
	if out := c.OK("pending", "q", "g", "--limit", "2", "--consumer", "me", "--min-idle", "1ms"); !strings.Contains(out,
		"(there may be more: see --limit)\n") {
		t.Error(out)
	}
	r := c.Run("pending", "q", "--group", "g", "--limit", "2", "--json")
	var entries []admin.PendingEntry
	clitest.Decode(t, r.Out, &entries)
	if len(entries) != 2 || r.Err != `{"note":"(and 1 more: see --limit)"}`+"\n" {
		t.Errorf("%+v, %s", entries, r.Err)
	}
	for _, e := range entries {
		if e.Consumer != "me" || e.Deliveries != 1 || e.Attempt != 1 || !strings.HasPrefix(e.ID, "m-") {
			t.Errorf("%+v", e)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Gone("m-4")
	w.Stop()
}

// pending and show name the partition of a message that is not in partition 0.
func TestPendingAndShowNameThePartition(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "partitions", "q", "--create", "8")
	counts := admin.PartitionCounts{1, 8}
	id := "" // an ID that belongs to partition 3
	for n := 0; counts.Of(id) != 3; n++ {
		id = fmt.Sprint("m-", n)
	}
	if _, err := lua.EnsureGroup(t.Context(), c.Redis(), lua.NewKeys(c.Prefix, "q/3"), "g"); err != nil {
		t.Fatal(err)
	}
	c.InPartition(3, "XADD", "stream", "1000-1", "id", id, "payload", "x", "attempt", "1", "due_ms", "1000")
	r := c.Redis()
	read := r.B().Xreadgroup().Group("g", "me").Count(1).Streams().Key(c.Key("q/3", "stream")).Id(">").Build()
	if err := r.Do(t.Context(), read).Error(); err != nil {
		t.Fatal(err)
	}
	clitest.Matches(t, c.OK("pending", "q", "--group", "g"), `ENTRY +ID +CONSUMER +HELD +IDLE +DELIVERIES +ATTEMPT`,
		`3/1000-1  `+id+` +me +[\d.]+m?s +[\d.]+m?s +1 +1`)
	var places []admin.Place
	c.JSON(&places, "show", "q", id)
	if len(places) != 1 || places[0].Partition != 3 || places[0].Consumer != "me" {
		t.Errorf("%+v", places)
	}
	if out := c.OK("show", "q", id); !strings.Contains(out, "partition  3\n") {
		t.Error(out)
	}
}
