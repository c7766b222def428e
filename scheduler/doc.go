// Package scheduler is duestream before a message is ready: a Producer takes messages into the schedule, a Scheduler moves each into
// its stream the moment it is due.
//
// The Producer commits in groups: messages that arrive while a script call is in flight go out together in the next one. The
// Scheduler keeps one loop per queue that it owns; a loop sleeps until the next due time, or until it is woken because an earlier
// one appeared. Schedulers are equal and keep no state; rendezvous hashing over those that live decides who owns which queue, and
// overlap is harmless.
//
// A queue may have several partitions. To a Scheduler each is a queue of its own; a Producer finds the right one by the ID of a message,
// and by every partition count that the queue ever had.
//
// Invariants:
//   - a commit repeated after a lost reply stores each message once and gives each the verdict of the first try (TestLostReplyIsRepeatedWithoutDuplicates);
//   - messages of one producer with equal due times keep the order of their calls (TestConcurrentCallersShareCommits), those of a
//     partition (TestPartitionKeepsTheOrderOfItsMessages);
//   - a message is found, and its ID refused, also in the partition of an older count (TestCancelAndRescheduleFindMessagesAcrossGrowth,
//     TestDuplicateIsRefusedAcrossGrowth); "not scheduled" is said only by who has heard of all counts (TestStaleCountsMakeNoDefiniteNo,
//     TestUnreadRegistryMakesNoDefiniteNo);
//   - partition counts are never forgotten as long as anyone knows them (TestForgottenCountsAreRegisteredAgain);
//   - the end of one caller's context changes nothing for another (TestCallersContextEndsAlone);
//   - no goroutine outlives its work: committers end with their queue, everything else with Run or Close (redistest.Main checks for leaks);
//   - nothing is polled: a message is drained at its due time, also when it became the earliest while the loop slept (TestDrainsOnTime, TestEarlierMessageWakesTheLoop);
//   - a queue that fails stops no other (TestFailingQueueStopsNoOther);
//   - whatever was overdue for long is drained by any scheduler (TestOverdueQueueIsDrainedByAnyone);
//   - a scheduler that cannot heartbeat keeps its queues (TestOutageKeepsTheAssignment);
//   - an idle scheduler sends at most two requests a second (TestIdleBudget).
package scheduler
