// Package producer takes messages into the schedule, and finds them there again to cancel them or change their time.
//
// A Producer commits in groups: messages that arrive while a script call is in flight go out together in the next one. It repeats
// calls whose reply was lost, under a token, so that nothing is stored twice. A queue may have several partitions: the ID of a
// message says which one it is in, by every partition count that the queue ever had.
//
// Invariants:
//   - a commit that is repeated after a lost reply stores each message once and gives each the verdict of the first try
//     (TestLostReplyIsRepeatedWithoutDuplicates);
//   - messages of one producer with equal due times keep the order of their calls (TestConcurrentCallersShareCommits), those of a
//     partition (TestPartitionKeepsTheOrderOfItsMessages);
//   - a message is found, and its ID refused, also in the partition of an older count
//     (TestCancelAndRescheduleFindMessagesAcrossGrowth,
//     TestDuplicateIsRefusedAcrossGrowth); "not scheduled" is said only when all counts were asked
//     (TestStaleCountsMakeNoDefiniteNo,
//     TestUnreadRegistryMakesNoDefiniteNo);
//   - the end of one caller's context changes nothing for another (TestCallersContextEndsAlone);
//   - no goroutine outlives its work: committers end when nothing waits, everything else with Close (redistest.Main checks for
//     leaks).
package producer
