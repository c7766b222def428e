// Package scheduler is a bridge's side of the schedule: it moves each message into its stream the moment it is due.
//
// A Scheduler keeps one loop per partition that it owns; a loop sleeps until the next due time, or until it is woken because an
// earlier one appeared. Schedulers are equal and keep no state; rendezvous hashing over those that live decides who owns which
// partition, and overlap is harmless. A survey looks at all partitions now and then, also at those of others, and a discovery
// looks for queues that nobody registered. Messages get into the schedule by package producer, or by any client that speaks the
// protocol.
//
// Invariants:
//   - nothing is polled: a message is drained at its due time, also when it became the earliest while the loop slept
//     (TestDrainsOnTime,
//     TestEarlierMessageWakesTheLoop);
//   - a queue that fails stops no other (TestFailingQueueStopsNoOther);
//   - a message that has been overdue for long is drained by any scheduler (TestOverdueQueueIsDrainedByAnyone);
//   - a scheduler that cannot heartbeat keeps its queues (TestOutageKeepsTheAssignment);
//   - partition counts are never forgotten as long as anyone knows them (TestForgottenCountsAreRegisteredAgain);
//   - an idle scheduler sends at most two requests a second (TestIdleBudget);
//   - no goroutine outlives Run (redistest.Main checks for leaks).
package scheduler
