// Package sizes reads the figures of queues, and changes nothing: numbers of messages, entries and dead letters, ages,
// and the consumers with their pending entries.
//
// One reader reads the figures of partitions into Sizes and GroupSizes, at one of three depths:
//   - A glance takes one request for many partitions: the script glance reads them. A Watcher uses it to sample many
//     queues at intervals, and computes their rates.
//   - A scrape adds exact sums for metrics. A StateReader takes partitions by name, because each bridge shows the
//     partitions that it owns.
//   - A full read counts everything, in bounded steps. Stats uses it.
//
// A Watcher and a StateReader keep a cache for each partition between reads.
//
// Pending lists the entries that consumers hold. Consumers lists the consumers of a queue's groups.
//
// DueHistogram counts the members of a schedule in bars of due times. Forecast adds up the work that a queue has now
// and will have within a time.
//
// Invariants:
//   - lag is right after entries were deleted out of order (TestLagIsRightAfterDeletesOutOfOrder);
//   - samples and Stats agree (TestSamplesAgreeWithStats), and the sums of a StateReader equal Stats
//     (metrics.TestGaugesAreAFullCount);
//   - a histogram counts each member once, in its bar (TestEachMemberIsCountedInItsBar);
//   - a forecast agrees with Stats, and its cost does not grow with the backlog (TestForecastAgreesWithStats,
//     TestForecastSendsTheSameCommandsForALongBacklog);
//   - a look at many queues is cheap and bounded (TestALookIsCheap, TestALookAtManyQueuesSendsFewRequests,
//     TestLargePayloadsAreNotReadForTheirLateness, TestManyQueuesTakeTurns).
package sizes
