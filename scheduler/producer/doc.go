// Package producer puts messages into the schedule, and finds them there to cancel them or change their due time.
//
// A Producer commits in groups: messages that arrive while a script call is in flight go out together in the next one.
// A call whose reply was lost is repeated under a token, so that nothing is stored twice. A queue may have several
// partitions. A message is in the partition of its key, or else of its ID, by some count that the queue ever had.
//
// Invariants:
//   - a commit that is repeated after a lost reply stores each message once, and gives each the verdict of the first
//     try (TestLostReplyIsRepeatedWithoutDuplicates);
//   - messages of one producer with equal due times keep the order of their calls (TestConcurrentCallersShareCommits);
//     with several partitions those of one partition do (TestPartitionKeepsTheOrderOfItsMessages);
//   - a message is found in the partition of an older count, and its ID is refused there, too
//     (TestCancelAndRescheduleFindMessagesAcrossGrowth, TestDuplicateIsRefusedAcrossGrowth);
//   - "not scheduled" is an answer only after the partitions of all counts were asked (TestStaleCountsMakeNoDefiniteNo,
//     TestUnreadRegistryMakesNoDefiniteNo);
//   - the end of one caller's context changes nothing for another (TestCallersContextEndsAlone);
//   - no goroutine outlives its work: committers end when no message waits, everything else with Close (redistest.Main
//     checks for leaks).
package producer
