// Package scheduler is duestream before a message is ready: a Producer takes messages into the schedule, a Scheduler moves each into
// its stream the moment it is due.
//
// The Producer commits in groups: messages that arrive while a script call is in flight go out together in the next one. The
// Scheduler keeps one loop per queue that it owns; a loop sleeps until the next due time, or until it is woken because an earlier
// one appeared. Schedulers are equal and keep no state; rendezvous hashing over those that live decides who owns which queue, and
// overlap is harmless.
//
// Invariants:
//   - a commit repeated after a lost reply stores each message once and gives each the verdict of the first try (TestLostReplyIsRepeatedWithoutDuplicates);
//   - messages of one producer with equal due times keep the order of their calls (TestConcurrentCallersShareCommits);
//   - the end of one caller's context changes nothing for another (TestCallersContextEndsAlone);
//   - no goroutine outlives its work: committers end with their queue, everything else with Run or Close (redistest.Main checks for leaks);
//   - nothing is polled: a message is drained at its due time, also when it became the earliest while the loop slept (TestDrainsOnTime, TestEarlierMessageWakesTheLoop);
//   - a queue that fails stops no other (TestFailingQueueStopsNoOther);
//   - whatever was overdue for long is drained by any scheduler (TestOverdueQueueIsDrainedByAnyone);
//   - a scheduler that cannot heartbeat keeps its queues (TestOutageKeepsTheAssignmentAndEndsTheCalm);
//   - an idle scheduler sends at most two requests a second (TestIdleBudget).
package scheduler
