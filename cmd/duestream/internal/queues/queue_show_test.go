package queues_test

import (
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/queues"
)

// Without a name, queue show lists all queues with their settings, defaults included, as a table and as JSON.
func TestQueueShowWithoutANameListsAll(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	if out := c.OK("queue", "show"); out != "no queues\n" {
		t.Error(out)
	}
	c.OK("queue", "partitions", "a", "--create", "2")
	c.OK("schedule", "b", "--in", "1h", "x")
	c.OK("queue", "set", "b", "--create", "max_attempts=4", "held=true")
	clitest.Matches(t, c.OK("queue", "show"),
		`QUEUE  VISIBILITY  MAX ATTEMPTS  RETRY MIN  RETRY MAX  TRIED FOR  PAUSED  PARTITIONS`,
		`a      30s         40 +1s +1h +24h46m +false   2`, `b      30s         4 +1s +1h +7s +true    1`)
	var all []queues.QueuePolicy
	c.JSON(&all, "queue", "show", "--group", "g")
	if len(all) != 2 || all[1].Queue != "b" || all[1].MaxAttempts != 4 || !all[1].Held || all[0].Partitions != 2 {
		t.Errorf("%+v", all)
	}
}
