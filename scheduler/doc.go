// Package scheduler is part of the engine of duestream, not its API; programs import
// [github.com/duestream/duestream/bridge]. It drains the schedule in a bridge: it moves each message into its stream
// when it is due.
//
// A Scheduler runs one loop per partition that it owns. A loop sleeps until the next due time, or until a wake token
// announces an earlier one. Schedulers are equal and keep no state; rendezvous hashing over the live ones assigns each
// partition an owner. Two schedulers that drain one partition do no harm. A survey checks all partitions at intervals,
// also those of other schedulers. A discovery finds queues that nobody registered. Package producer puts messages into
// the schedule, and so does any client of the protocol.
//
// Invariants:
//   - nothing is polled: a message is drained at its due time, also when it was added while the loop slept
//     (TestDrainsOnTime, TestEarlierMessageWakesTheLoop);
//   - a queue that fails stops no other (TestFailingQueueStopsNoOther);
//   - a message that has been overdue for long is drained by any scheduler (TestOverdueQueueIsDrainedByAnyone);
//   - a scheduler that cannot heartbeat keeps its queues (TestOutageKeepsTheAssignment);
//   - partition counts are never forgotten as long as anyone knows them (TestForgottenCountsAreRegisteredAgain);
//   - an idle scheduler sends at most two requests a second (TestIdleBudget);
//   - no goroutine outlives Run (redistest.Main checks for leaks).
package scheduler
