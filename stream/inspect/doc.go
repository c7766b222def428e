// Package inspect reads the state of queues and messages, and changes nothing.
//
// Stats counts the contents of a queue; it estimates only beyond stated bounds. A Watcher samples many queues at
// intervals: the figures that cost the server next to nothing, and their rates. Both read partitions by
// partitionReader, at two depths. A StateReader uses the shallow one, for metrics. It takes partitions by name, because
// each bridge shows those that it owns.
//
// Find looks for one message in all queues, and says what it waits for; Locate looks in one queue. Peek shows the next
// due messages, Pending the entries that consumers hold, Consumers the readers.
//
// Find reads streams that may have a hundred thousand entries. Its connections drop the entries of other messages
// before they are parsed (entryFilter), and it reads each stream from both ends (streamSearch).
//
// Invariants:
//   - a message is found in every state, in every partition and queue, even if it moves meanwhile
//     (TestLocateFollowsAMessageThroughAllStates, TestFindLooksInAllQueuesAndPartitions,
//     TestFindLooksAgainAtWhatCameMeanwhile);
//   - the filter of a connection changes only replies that are lists of entries, and keeps every entry with the
//     message's ID (TestFilterKeepsTheEntriesOfTheMessageAndPassesOnAllElse);
//   - lag is right after entries were deleted out of order (TestLagIsRightAfterDeletesOutOfOrder);
//   - samples and Stats agree (TestSamplesAgreeWithStats), and the sums of a StateReader equal Stats
//     (metrics.TestGaugesAreAFullCount);
//   - a look at many queues is cheap and bounded (TestALookIsCheap, TestLargePayloadsAreNotReadForTheirLateness,
//     TestManyQueuesTakeTurns).
package inspect
