// Package stream is part of the engine of duestream, not its API; programs import
// [github.com/duestream/duestream/bridge]. It handles messages from the moment they are ready.
//
// A Worker delivers them to a handler and settles them by its result, in all partitions of a queue with one set of
// slots. The policy of the queue (package policy) sets the visibility timeout, attempts, retry delays and pauses. Grow
// adds partitions to a queue. The subpackages maintain queues (keeper), read their figures (sizes), find messages
// (lookup), handle messages that failed for good (deadletter), serve consumers that pull (pull), and move messages
// between servers (transfer).
//
// Only the scripts of package lua change the state of a message here, so any number of processes may work at the same
// time, and may die at any instruction. A process keeps only its own progress in memory, and may lose it. Functions
// take the name of a queue and cover all its partitions, unless they say otherwise.
//
// Invariants:
//   - a worker holds no more entries than it has slots (TestWorkerNeverHoldsMoreThanItsSlots);
//   - a handler that runs for longer than the visibility timeout keeps its delivery (TestSlowHandlerIsNotReclaimed);
//   - a handler that lost its delivery is told, and has no effect
//     (TestHandlerOfALostDeliveryIsCancelledAndHasNoEffect);
//   - in a queue with partitions the same holds for all partitions together (TestWorkerServesAllPartitionsWithItsSlots,
//     TestStopLeavesHandlersOfAllPartitionsTheirTime), and idle partitions do not delay a busy one
//     (TestIdlePartitionsDoNotStarveABusyOne, TestMorePartitionsThanSlotsTakeTurns);
//   - of several queues a later one is read only while the earlier ones are empty (TestStrictOrderUnderABacklog), or
//     each has its share (TestWeightsAreSharesOfDeliveries); a failing queue stops no other
//     (TestQueueThatFailsDoesNotStopOthers), and all of them together never hold more than the slots
//     (TestStopOfSeveralQueuesIsClean);
//   - a queue that grows misses neither group nor policy, despite concurrent changes and failures
//     (TestGrowMissesNothingThatHappensBesideIt, TestGrowThatFailsAnywhereIsMendedByARepeat);
//   - a clean stop leaves nothing pending and burns no attempt (TestCleanStopLeavesNothingPendingAndBurnsNoAttempt);
//   - a lost group is created again at 0, every time (TestLostGroupIsCreatedAgainAtZeroEveryTime);
//   - a retry is for its group alone (TestRetryOfAnotherGroupIsSkippedWithoutASlot);
//   - entries of a read that returns after the worker gave it up are handled (TestEntriesOfALateReadAreHandled), in
//     steps that fit the link (TestLargeEntriesOverASlowLinkAreReadInSmallerSteps).
package stream
