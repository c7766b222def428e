package conformance

import (
	"time"
)

// partitionCases: queues with several streams.
var partitionCases = []Case{
	{
		Name: "partitions-grow", Level: Good, Section: "16",
		Rule: "A worker reads the registry about every 5 s, and then the streams of partitions that were added.",
		worker: func(t *workerTrial) {
			t.served("one")
			t.grow(3)
			t.inEach("m", 3, 15*time.Second)
		},
	},
	{
		Name: "partitions-extend", Level: Good, Section: "8, step 7, and 16",
		Rule: "A worker extends what it works on, of whichever partition.",
		worker: func(t *workerTrial) {
			t.register()
			t.grow(3)
			t.worker("one")
			t.inEach("before", 3, 0)
			t.schedule(message{id: "long-1", partition: 1, work: t.slow(2.5)}, message{id: "long-2", partition: 2, work: t.slow(2.5)})
			t.done(0, "long-1", "long-2")
			t.killAll()
			t.once("long-1", "long-2")
		},
	},
}
