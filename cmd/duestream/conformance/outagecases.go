package conformance

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

const longOutage = 9 * time.Second // a worker must survive an outage of this length

// outageCases: the network fails, a group is lost on one of several partitions, a worker is stopped in long work.
var outageCases = []Case{
	{
		Name: "outage", Level: Good, Section: "8, step 2, and 14", tapped: true,
		Rule: "A worker whose server cannot be reached for 9 s goes on by itself within 15 s of its return, also in the middle of its work, which it finishes.",
		worker: func(t *workerTrial) {
			t.policy(admin.SettingVisibility, "15000")
			t.served("one")
			// In the first round the worker waits for messages, in the second it works.
			for round, long := range []time.Duration{outage, longOutage} {
				held := message{id: "held", work: "slow 12000"}
				if round == 1 {
					t.schedule(held)
					t.awaitBegun(0, held.id, 1)
				}
				t.unreachable(long)
				after := message{id: fmt.Sprint("after-", round+1)}
				t.schedule(after)
				during(fmt.Sprintf("after its server could not be reached for %s", long), func() {
					t.awaitBegun(healWithin, after.id, 1)
				})
			}
			t.done(0, "held", "after-1", "after-2")
		},
	},
	{
		Name: "partition-lost", Level: Good, Section: "8, step 8, and 16",
		Rule: "When its group is gone on one partition (NOGROUP, or UNBLOCKED), a worker creates it again there, at 0, " +
			"every time, whichever partition that is, and goes on with all.",
		worker: func(t *workerTrial) {
			const partitions = 3
			t.register()
			t.grow(partitions)
			t.worker("one")
			t.inEach("before", partitions, 0)
			for round, partition := range []int{1, 2, 0, 0} {
				id := fmt.Sprint("meanwhile-", round+1)
				t.loseGroup(partition, loseStream[round%len(loseStream)], id)
				during(fmt.Sprintf("after the group of partition %d was lost, with a message ready", partition), func() {
					t.done(0, id)
				})
				during(fmt.Sprintf("after the group of partition %d was lost", partition), func() {
					t.inEach(fmt.Sprint("after-", round+1), partitions, 0)
				})
			}
		},
	},
	{
		Name: "stop-in-work", Level: Good, Section: "8, step 9",
		Rule: "At SIGTERM in the middle of long work a worker goes on extending, finishes it, acknowledges it then, and exits with 0 within 10 s.",
		worker: func(t *workerTrial) {
			one := t.served("one")
			t.schedule(message{id: "long", work: "slow 5000"})
			b := t.awaitBegun(0, "long", 1)
			t.watching(500*time.Millisecond, "long")
			t.stop(one)
			t.pendingDuringWork(one, b, 5*time.Second)
			t.exited(one, stopWithin)
			if left := t.unsettled(t.group); left != "" {
				failf("the worker has ended, and message %q, which it had begun, is not done: %s", "long", left)
			}
			t.once("long")
		},
	},
}

// unreachable cuts the network of the programs for a while.
func (t *workerTrial) unreachable(long time.Duration) {
	for _, tap := range t.allTaps() {
		tap.away(true)
		defer tap.away(false)
	}
	during("while its server could not be reached", func() { t.lookOn(time.Now().Add(long), func() {}) })
}

// loseStream holds Lua scripts that lose a group: with its stream, or alone. A case uses them in turns.
var loseStream = []string{"redis.call('DEL', KEYS[1])", "redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])"}

// inEach schedules a message in every partition, and waits until all are done, at most for limit (0: the patience of
// the kit).
func (t *workerTrial) inEach(what string, partitions int, limit time.Duration) {
	var all []message
	for i := range partitions {
		all = append(all, message{id: fmt.Sprintf("%s-%d", what, i), partition: i})
	}
	t.schedule(all...)
	t.done(limit, ids(all)...)
}
