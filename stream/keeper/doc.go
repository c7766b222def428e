// Package keeper maintains queues for all consumers, including those in other languages that only know XREADGROUP and
// XACK.
//
// A Keeper visits the queues that a bridge owns. It reclaims abandoned entries (Reclaimer), frees acknowledged entries
// (Trimmer), and deletes idle consumers and bodies that never got a due time. An empty queue costs no requests; the
// Keeper visits the queue again after Notice. A Reclaimer or Trimmer makes single passes over one partition, given by
// name.
//
// An orphan is a field of payload or meta without a member of the schedule: the body of a message that has no due time.
// The turns of a queue are the order of its messages with the same ordering key.
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
//   - a note about the delivery of an entry is deleted with the entry (TestNotesOfDeliveriesGoWithThem,
//     TestDrainedQueueHoldsNoNotesOfDeliveries);
//   - an orphan is deleted only after it was seen twice (TestOrphansGoOnlyAfterTheyWereConfirmed), even beside members
//     without a body (TestKeeperDeletesOrphansDespiteMembersWithoutABody);
//   - idle queues cost no requests (TestIdleQueuesCostTheKeeperNothing), and a queue that becomes busy is maintained
//     again (TestKeeperFreesReclaimsAndRests, TestUntidyQueueThatBecomesBusyIsKeptAtOnce).
package keeper
