// Package scheduler is part of the engine of duestream, not its API; programs import
// [github.com/duestream/duestream/bridge]. It drains the schedule in a bridge: it moves each message into its stream
// when it is due.
//
// A Scheduler runs one loop per partition that it owns. A loop sleeps until the next due time, or until a wake token
// announces an earlier one. All schedulers are equal, and nothing is lost with a scheduler that dies.
// Rendezvous hashing over the live schedulers assigns each partition an owner. Two schedulers that drain one partition
// do no harm. A survey checks all partitions at intervals, also those of other schedulers. A discovery finds queues
// that are not registered. Package producer puts messages into the schedule, and so does any client of the protocol.
//
// Invariants:
//   - nothing is polled: a message is drained at its due time, even if it was added while the loop slept
//     (TestDrainsOnTime, TestEarlierMessageWakesTheLoop);
//   - a queue that fails stops no other queue (TestFailingQueueStopsNoOther);
//   - a message that has been overdue for long is drained by any scheduler (TestOverdueQueueIsDrainedByAnyone);
//   - a scheduler whose heartbeats fail keeps its queues (TestOutageKeepsTheAssignment);
//   - a partition count that the registry lost is registered again by any bridge that knows it
//     (TestForgottenCountsAreRegisteredAgain);
//   - an idle scheduler sends at most two requests a second (TestIdleBudget);
//   - no goroutine outlives Run (redistest.Main checks for leaks).
package scheduler
