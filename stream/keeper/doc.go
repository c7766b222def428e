// Package keeper looks after queues on behalf of all consumers, also those in other languages that know nothing but XREADGROUP
// and XACK.
//
// Keeper visits the queues of a bridge: it reclaims what consumers abandoned (Reclaimer), frees what they acknowledged (Trimmer),
// deletes consumers that are gone, and bodies that never got a due time. A queue that holds nothing costs it no requests; Keeper
// visits it again when somebody notices it. Reclaimer and Trimmer make one pass each, over one partition, whose name they take.
//
// Invariants:
//   - abandoned entries are found wherever they lie in a pending list, in every group there is
//     (TestReclaimFindsWhatLiesBehindALongHeadOfFreshEntries, TestReclaimServesGroupsNobodyRegistered);
//   - an abandoned entry is retried for its group alone (TestAbandonedEntryIsRetriedForItsGroupAlone);
//   - an outage is not an attempt (TestPassThatWasHeldUpByAnOutageReclaimsNothing); neither outages nor bridges that start and
//     stop keep
//     abandoned entries pending for ever (TestReclaimersThatStartAndStopReclaimInTime, lua.TestWaitForAbandonedEntriesIsBounded);
//   - damaged entries and deleted bodies become dead letters, and stop nothing
//     (TestDamagedEntriesLoseNothingAndStopNothing, TestBodyDeletedBySomeoneBecomesADeadLetter);
//   - memory returns although an older entry stays pending, and nothing is freed that a group still needs
//     (TestTrimFreesBehindAnEntryThatStaysPending, TestTrimSparesWhatAnyGroupStillNeeds, TestWithoutGroupsNothingIsTrimmed);
//   - a consumer that holds something is never deleted (TestIdleConsumersAreDropped);
//   - notes since when deliveries are held go with them (TestNotesOfDeliveriesGoWithThem,
//     TestDrainedQueueHoldsNoNotesOfDeliveries);
//   - a body without a due time goes only after it was seen twice (TestOrphansGoOnlyAfterTheyWereConfirmed), and goes wherever it
//     hides
//     (TestKeeperDeletesOrphansBehindMembersWithoutABody);
//   - idle queues cost no requests (TestIdleQueuesCostTheKeeperNothing), and a queue that becomes busy is kept again
//     (TestKeeperFreesReclaimsAndRests, TestUntidyQueueThatBecomesBusyIsKeptAtOnce).
package keeper
