package conformance

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// partitionCases: queues with several streams.
var partitionCases = []Case{
	{
		Name: "partitions", Level: Good, Section: "16",
		Rule: "A worker reads the stream of every partition, each with its group.",
		run: func(t *trial) {
			t.register()
			t.grow(3)
			t.worker("one")
			t.eachPartition("m", 3, 0)
		},
	},
	{
		Name: "partitions-grow", Level: Good, Section: "16",
		Rule: "A worker reads the registry about every 5 s, and then the streams of partitions that were added.",
		run: func(t *trial) {
			t.served("one")
			t.grow(3)
			t.eachPartition("m", 3, 15*time.Second)
		},
	},
	{
		Name: "partitions-extend", Level: Good, Section: "8, step 7, and 16",
		Rule: "A worker extends what it works on, of whichever partition.",
		run: func(t *trial) {
			t.register()
			t.grow(3)
			t.worker("one")
			t.inEach("before", 3)
			t.schedule(message{id: "long-1", partition: 1, work: t.slow(2.5)}, message{id: "long-2", partition: 2, work: t.slow(2.5)})
			t.done(0, "long-1", "long-2")
			t.killAll()
			t.once("long-1", "long-2")
		},
	},
}

func (t *trial) grow(n int) {
	_, err := stream.Grow(t.ctx, t.redis.Client, t.prefix, t.queue, n, nil)
	couldNot("add partitions", err)
}

// eachPartition schedules three messages in every partition, and checks that each was begun once.
func (t *trial) eachPartition(letter string, partitions int, limit time.Duration) {
	var all []message
	for i := range partitions {
		for _, m := range several(3, fmt.Sprintf("%s-of-%s", letter, lua.PartitionName("partition", i)), "ok") {
			m.partition = i
			all = append(all, m)
		}
	}
	t.schedule(all...)
	t.done(limit, ids(all)...)
	t.killAll()
	t.once(ids(all)...)
}
