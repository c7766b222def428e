// Package stream is what happens to a message once it is ready.
//
// Worker delivers it to a handler and settles what the handler returns. Keeper looks after a queue on behalf of all consumers, also those
// in other languages that know nothing but XREADGROUP and XACK: it reclaims what they abandoned (Reclaimer), frees what they
// acknowledged (Trimmer), and deletes those that are gone. DeadLetters reads, redrives and purges what failed for good. Stats, Pending,
// Consumers and Locate look, and change nothing. Grow gives a queue more partitions. Keeper, Reclaimer and Trimmer are told of each
// partition by its name, like of a queue; everything else takes the name of the queue and is about all its partitions.
//
// Everything here changes the state of a message by the scripts of package lua alone, so any number of processes may do the same at the
// same time, and may die at any instruction. Nothing is kept in memory but how far a pass has looked.
//
// Invariants:
//   - a worker holds no more entries than it has slots (TestWorkerNeverHoldsMoreThanItsSlots);
//   - a handler that runs for longer than the visibility timeout keeps its delivery (TestSlowHandlerIsNotReclaimed);
//   - one that lost it is told, and has no effect (TestHandlerOfALostDeliveryIsCancelledAndHasNoEffect);
//   - of a queue with partitions the same holds for all of them together (TestWorkerServesAllPartitionsWithItsSlots,
//     TestStopLeavesHandlersOfAllPartitionsTheirTime), and none is kept from its turn by idle ones
//     (TestIdlePartitionsDoNotStarveABusyOne, TestMorePartitionsThanSlotsTakeTurns);
//   - a queue that grows misses neither group nor policy, whatever happens beside it, and whatever fails
//     (TestGrowMissesNothingThatHappensBesideIt, TestGrowThatFailsAnywhereIsMendedByARepeat);
//   - a clean stop leaves nothing pending and burns no attempt (TestCleanStopLeavesNothingPendingAndBurnsNoAttempt);
//   - a lost group is created again at 0, every time (TestLostGroupIsCreatedAgainAtZeroEveryTime);
//   - a retry is for its group alone (TestRetryOfAnotherGroupIsSkippedWithoutASlot, TestAbandonedEntryIsRetriedForItsGroupAlone);
//   - what is abandoned is found wherever it lies in a pending list, in every group there is
//     (TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries, TestReclaimServesGroupsNobodyRegistered);
//   - an outage is not an attempt (TestPassThatWasHeldUpByAnOutageReclaimsNothing), and outages and starts of bridges do not keep what is abandoned for ever
//     (TestReclaimersThatStartAndStopReclaimInTime, lua.TestWaitForAbandonedEntriesIsBounded);
//   - damaged entries and deleted bodies become dead letters, and stop nothing
//     (TestDamagedEntriesLoseNothingAndStopNothing, TestBodyDeletedBySomeoneBecomesADeadLetter);
//   - memory returns although an older entry stays pending, and nothing is freed that a group still needs
//     (TestTrimFreesBehindAnEntryThatStaysPending, TestTrimSparesWhatAnyGroupStillNeeds, TestWithoutGroupsNothingIsTrimmed);
//   - a consumer that holds something is never deleted (TestIdleConsumersAreDropped);
//   - a body without a due time goes only after it was seen twice (TestOrphansGoOnlyAfterTheyWereConfirmed), and goes wherever it hides
//     (TestKeeperDeletesOrphansBehindMembersWithoutABody);
//   - idle queues cost no requests (TestIdleQueuesCostTheKeeperNothing), and a queue that becomes busy is kept again
//     (TestKeeperFreesReclaimsAndRests, TestUntidyQueueThatBecomesBusyIsKeptAtOnce);
//   - a look at many queues is cheap and bounded (TestALookIsCheap, TestLargePayloadsAreNotReadForTheirLateness, TestManyQueuesTakeTurns);
//   - what a read was given is taken up, also when the worker gave it up before (TestWhatALateReadWasGivenIsTakenUp);
//   - a dead letter is redriven or purged once (TestRedriveRacingPurgeIsWonByOneSide), and comes back without its old expiry
//     (TestRedriveOfAnExpiredMessageIsDelivered);
//   - whatever the schedule or the dead letters hold comes through a file as it was (TestScheduledRecordsAreLossless,
//     TestDeadRecordsAreLossless).
package stream
