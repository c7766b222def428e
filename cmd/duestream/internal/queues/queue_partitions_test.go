package queues_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
)

// queue partitions adds partitions, never removes any, and shows the counts that the queue has had, the figures of each
// partition, and a policy that differs between partitions.
func TestQueuePartitionsGrowsAndShows(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "set", "q", "--create", "max_attempts=3")
	var got queues.PartitionCounts
	c.JSON(&got, "queue", "partitions", "q")
	if fmt.Sprint(got.Queue, got.Partitions, got.Counts, len(got.ByPartition)) != "q1 [1] 1" {
		t.Errorf("%+v", got)
	}
	if out := c.OK("queue", "partitions", "q", "--create", "4"); out != "q has 4 partitions\n" {
		t.Error(out)
	}
	got = queues.PartitionCounts{}
	c.JSON(&got, "queue", "partitions", "q", "--create", "6")
	// Queue, Partitions, Counts (those that the queue has had), ByPartition.
	if fmt.Sprint(got) != "{q 6 [1 4 6] []}" {
		t.Errorf("%+v", got)
	}
	c.Fails(exit.Failure, []string{"q has 6 partitions, and cannot have 5: a queue never shrinks", "hint: "}, "queue",
		"partitions", "q", "5")
	for i := range 6 {
		c.InPartition(i, "ZADD", "due", "9999999999999", fmt.Sprint("m-", i)) // due in the year 2286
	}
	out := c.OK("queue", "partitions", "q")
	for _, text := range []string{"partitions     6\n", "counts so far  1,4,6\n", "PARTITION",
		"\n5          1          0        0      0        0\n"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	c.InPartition(3, "HSET", "policy", "max_attempts", "9")
	if out := c.OK("queue", "partitions", "q"); !strings.Contains(out, "! partition 3: another policy than partition 0") {
		t.Error(out)
	}
	if out := c.OK("queue", "show", "q"); !strings.Contains(out, "partitions          6\n") {
		t.Error(out)
	}
	var policy struct{ Partitions int }
	c.JSON(&policy, "queue", "show", "q")
	if policy.Partitions != 6 {
		t.Errorf("%+v", policy)
	}
	if out := c.OK("__complete", "queue", "partitions", ""); !strings.HasPrefix(out, "q\n") {
		t.Error(out)
	}
}

// Regression: a queue could grow while it held messages with an ordering key (scheduled, in flight, or retries). The
// ordering key then belonged to another partition, so its next message was delivered concurrently with them. The
// command now refuses, unless --despite-keys is given.
func TestAQueueThatHoldsMessagesWithAKeyDoesNotGrowUnasked(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "x", "--key", "customer-7", "--in", "1h", "body")
	refuses := func(why string) {
		t.Helper()
		said := []string{"q: the queue holds messages with a key: " + why, "hint: ", "--despite-keys"}
		c.Fails(exit.Failure, said, "queue", "partitions", "q", "4")
	}
	refuses(`key "customer-7" is scheduled in partition 0`)
	c.OK("cancel", "q", "x")
	// The message with this key that is in flight, as entry 1-1.
	c.InPartition(0, "ZADD", "turns", "0", "customer-7\x1fbusy\x1f1-1")
	refuses("in partition 0 some are in flight, or wait for one of their key")
	if out := c.OK("queue", "partitions", "q", "--despite-keys", "4"); out != "q has 4 partitions\n" {
		t.Error(out)
	}
	if out := c.OK("queue", "partitions", "q", "4"); out != "q has 4 partitions\n" { // the same count only repairs
		t.Error(out)
	}
	c.InPartition(0, "DEL", "turns")
	if out := c.OK("queue", "partitions", "q", "6"); out != "q has 6 partitions\n" {
		t.Error(out)
	}
}
