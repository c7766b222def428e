// Package keeper maintains queues for all consumers, including those in other languages that only know XREADGROUP and
// XACK.
//
// A Keeper visits the queues that a bridge owns. It reclaims abandoned entries (Reclaimer), frees acknowledged ones
// (Trimmer), and deletes idle consumers and bodies that never got a due time. An empty queue costs no requests; the
// Keeper visits it again when it is noticed. Reclaimer and Trimmer make single passes over one partition, given by
// name.
//
// Invariants:
//   - abandoned entries are found at any position of a pending list, in every existing group
//     (TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries, TestReclaimServesGroupsNobodyRegistered);
//   - an abandoned entry is retried for its group alone (TestAbandonedEntryIsRetriedForItsGroupAlone);
//   - an outage is not an attempt (TestPassThatWasHeldUpByAnOutageReclaimsNothing); neither outages nor bridges that
//     start and stop keep abandoned entries pending for ever (TestReclaimersThatStartAndStopReclaimInTime,
//     lua.TestWaitForAbandonedEntriesIsBounded);
//   - damaged entries and deleted bodies become dead letters, and stop nothing
//     (TestDamagedEntriesLoseNothingAndStopNothing, TestBodyDeletedBySomeoneBecomesADeadLetter);
//   - acknowledged entries are freed although an older one stays pending, and nothing is freed that a group still needs
//     (TestTrimFreesBehindAnEntryThatStaysPending, TestTrimSparesWhatAnyGroupStillNeeds,
//     TestWithoutGroupsNothingIsTrimmed);
//   - a consumer that holds entries is never deleted (TestIdleConsumersAreDropped);
//   - the notes of when an entry was delivered go with the entry (TestNotesOfDeliveriesGoWithThem,
//     TestDrainedQueueHoldsNoNotesOfDeliveries);
//   - a body without a due time is deleted only after it was seen twice (TestOrphansGoOnlyAfterTheyWereConfirmed),
//     wherever it is (TestKeeperDeletesOrphansBehindMembersWithoutABody);
//   - idle queues cost no requests (TestIdleQueuesCostTheKeeperNothing), and a queue that becomes busy is kept again
//     (TestKeeperFreesReclaimsAndRests, TestUntidyQueueThatBecomesBusyIsKeptAtOnce).
package keeper
