// Package inspect looks at queues and messages, and changes nothing.
//
// Stats counts what a queue holds, with estimates only beyond stated bounds. A Watcher samples many queues again and again: the
// figures that cost the server next to nothing, and their rates. Both read partitions by partitionReader, at two depths. A
// StateReader reads by the first depth, for metrics: partitions by name, because each bridge shows its own.
//
// Find looks for one message in all queues, and says what it waits for; Locate looks for it in one. Peek shows what is due next,
// Pending what consumers hold, Consumers who reads.
//
// Find reads streams that may have a hundred thousand entries. Its connections drop the entries of other messages while they are
// still bytes (entryFilter), and it reads each stream from both ends (streamSearch).
//
// Invariants:
//   - a message is found in every state that it can be in, in every partition and queue, whatever moves meanwhile
//     (TestLocateFollowsAMessageThroughAllStates, TestFindLooksInAllQueuesAndPartitions, TestFindLooksAgainAtWhatCameMeanwhile);
//   - the filter of a connection changes no reply but lists of entries, and of those keeps every entry with the message's ID
//     (TestFilterKeepsTheEntriesOfTheMessageAndPassesOnAllElse);
//   - lag is right after entries were deleted out of order (TestLagIsRightAfterDeletesOutOfOrder);
//   - samples and Stats agree (TestSamplesAgreeWithStats), and what a StateReader reads adds up to Stats
//     (metrics.TestGaugesAreAFullCount);
//   - a look at many queues is cheap and bounded (TestALookIsCheap, TestLargePayloadsAreNotReadForTheirLateness,
//     TestManyQueuesTakeTurns).
package inspect
