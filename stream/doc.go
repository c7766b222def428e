// Package stream is what happens to a message once it is ready.
//
// Worker delivers it to a handler and settles what the handler returns, in all partitions of a queue with one set of slots. A
// Policy says how: visibility timeout, attempts, delays of retries, pause. Grow gives a queue more partitions. The packages below
// it look after queues (keeper), look at them (inspect), and handle what failed for good (deadletter) or moves between servers
// (transfer).
//
// Everything here changes the state of a message by the scripts of package lua alone, so any number of processes may do the same
// at the same time, and may die at any instruction. Memory holds nothing but how far a pass has looked. Functions take the name
// of a queue, and mean all its partitions, unless they say otherwise.
//
// Invariants:
//   - a worker holds no more entries than it has slots (TestWorkerNeverHoldsMoreThanItsSlots);
//   - a handler that runs for longer than the visibility timeout keeps its delivery (TestSlowHandlerIsNotReclaimed);
//   - a handler that lost its delivery is told, and has no effect (TestHandlerOfALostDeliveryIsCancelledAndHasNoEffect);
//   - in a queue with partitions the same holds for all partitions together (TestWorkerServesAllPartitionsWithItsSlots,
//     TestStopLeavesHandlersOfAllPartitionsTheirTime), and idle partitions keep no busy one from its turn
//     (TestIdlePartitionsDoNotStarveABusyOne, TestMorePartitionsThanSlotsTakeTurns);
//   - of several queues a later one is read only while those before it are empty (TestStrictOrderUnderABacklog), or each has its
//     share (TestWeightsAreSharesOfDeliveries); one that fails stops no other (TestQueueThatFailsDoesNotStopOthers), and all of
//     them together never hold more than the slots (TestStopOfSeveralQueuesIsClean);
//   - a queue that grows misses neither group nor policy, whatever happens beside it, and whatever fails
//     (TestGrowMissesNothingThatHappensBesideIt, TestGrowThatFailsAnywhereIsMendedByARepeat);
//   - a clean stop leaves nothing pending and burns no attempt (TestCleanStopLeavesNothingPendingAndBurnsNoAttempt);
//   - a lost group is created again at 0, every time (TestLostGroupIsCreatedAgainAtZeroEveryTime);
//   - a retry is for its group alone (TestRetryOfAnotherGroupIsSkippedWithoutASlot);
//   - entries that a read brings after the worker gave it up are handled (TestWhatALateReadWasGivenIsTakenUp).
package stream
